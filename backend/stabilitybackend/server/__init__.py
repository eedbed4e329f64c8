"""The application: routes, pages about the server, wiring."""
