"""What differs between the compilations of a function, and what edits save."""
