"""Plans as text, as a picture and as numbers; nothing here changes or decides anything."""
