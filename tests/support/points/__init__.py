"""What tests of stored points share: naive stores, random trees of segments, builders of archives."""
