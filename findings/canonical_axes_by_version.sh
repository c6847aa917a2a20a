#!/usr/bin/env bash
# nibabel 5.3.3 and 5.4.0
# They turn the same oblique volume into different canonical orientations.
#
# Guess: as_closest_canonical gives the same arrays in both, as the map to millimetres decides.
# Seen: if two stored axes are nearest to the same direction of the body, 5.3.3 gives that direction to the first of
# them, and 5.4.0 to the one that is nearer to it. For the affine below, the stored axis along right is 0 in one and 1
# in the other, so the same slices show other planes. (io_orientation in nibabel/orientations.py: 5.3.3 goes through
# the axes in order, 5.4.0 by their largest component.)
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cat > "$folder/axes.py" <<'PY'
import nibabel
import numpy as np

affine = np.eye(4)
affine[:3, :3] = np.linalg.qr(np.array([[0.62, 0.78, 0.08], [0.5, -0.31, -0.81], [-0.6, 0.54, -0.58]]))[0]
image = nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), affine)
rows = nibabel.io_orientation(affine)[:, 0].astype(int).tolist()
print("axis along right:", rows.index(0), "shape:", *nibabel.as_closest_canonical(image).shape)
PY
for version in 5.3.3 5.4.0; do
  "${PYTHON:-python3}" -m venv "$folder/$version"
  "$folder/$version/bin/python" -m pip install --quiet --disable-pip-version-check "nibabel==$version" numpy==1.26.4
  "$folder/$version/bin/python" "$folder/axes.py" | tee "$folder/$version.txt"
done
[[ "$(< "$folder/5.3.3.txt")" == "axis along right: 0 shape: 4 6 5" ]] || { echo "nibabel 5.3.3 has changed" >&2; exit 1; }
[[ "$(< "$folder/5.4.0.txt")" == "axis along right: 1 shape: 5 6 4" ]] || { echo "nibabel 5.4.0 has changed" >&2; exit 1; }
echo "seen: the first axis in 5.3.3, the nearer one in 5.4.0"
