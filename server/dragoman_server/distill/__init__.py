"""`dragoman-distill`: teachers translate a corpus for a student to learn from (Kim & Rush 2016)."""
