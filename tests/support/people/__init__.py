"""What tests of proposals, roles and assistants share."""
