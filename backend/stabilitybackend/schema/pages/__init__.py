"""What people leave on the pages: views that they saved."""
