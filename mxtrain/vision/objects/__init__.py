"""Formats of annotation tools: objects with boxes, polygons, masks or key points, for all tasks that have these."""
