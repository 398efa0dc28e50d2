"""Imports models that were converted for CTranslate2."""
