"""Orders given while their run had no owner."""
