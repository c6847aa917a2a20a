"""What networks that find key points have in common."""
