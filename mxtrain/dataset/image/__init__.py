"""What datasets of images share: decoding, augmentation, record files, and pictures with masks."""
