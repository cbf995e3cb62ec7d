"""What happened: events, leaves, programs, and what they were like."""
