"""What people leave on the pages (views that they saved), and what a page shows first (headline)."""
