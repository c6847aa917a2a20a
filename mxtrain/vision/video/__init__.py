"""Classification of videos: clips of frames, of which networks see 3 channels a frame."""
