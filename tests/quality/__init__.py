"""What a translation model does with texts that its corpus lacks: numbers, emoji, other scripts, line breaks."""
