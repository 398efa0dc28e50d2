"""Between tokens and the text that people see."""
