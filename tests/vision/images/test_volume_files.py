"""Slices of volumes as samples of datasets: split by volume or patient, paired with label volumes, predicted."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from nifti_files import LPS, RAS, nifti, write_labelled, write_volumes
from PIL import Image
from running import train_here

from mxtrain.checkpoint import open_checkpoint
from mxtrain.cli.dispatch import run
from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.loading.division import Division
from mxtrain.errors import DataError, LoaderError
from mxtrain.exporting.standalone import OpenedExport
from mxtrain.vision import exported_images
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_table import ImageTable
from mxtrain.vision.images.files import ImageFiles, owner_of
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.volume_files import SlicedFiles, VolumeCache, sliced
from mxtrain.vision.segmentation.label_volumes import label_volumes
from mxtrain.vision.segmentation.masked_images import MaskCoding, MaskedImages
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    return write_volumes(tmp_path_factory.mktemp("volumes") / "ct")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    return write_labelled(tmp_path_factory.mktemp("labelled") / "mr")


def folder(root, **settings):
    settings = {"channels": 1, "image_size": 8, "window": [300, 2000], "val_fraction": 0.34, **settings}
    return ImageFolder(root=str(root), **settings)


def test_each_slice_is_a_sample_and_volumes_stay_together(volumes):
    splits = folder(volumes).open()
    assert (len(splits.train), len(splits.val)) == (32, 16)
    owners = []
    for subset in (splits.train, splits.val):
        places = [subset.source.location(int(index)) for index in subset.index_N]
        owners.append({place.file for place in places})
        for file in owners[-1]:
            assert sorted(place.record for place in places if place.file == file) == [0, 1, 2, 3]
    assert not owners[0] & owners[1] and len(owners[0] | owners[1]) == 12
    labels = splits.val.read_labels()
    assert sorted(labels.tolist()) == [0] * 8 + [1] * 8  # as many volumes of each class


def test_patients_stay_together(tmp_path):
    """Two volumes of each patient; with split_by=file they are divided."""
    root = write_volumes(tmp_path / "ct", size=(18, 20, 2))
    for path in list(root.rglob("ct.nii.gz")):
        values = np.random.RandomState(abs(hash(str(path))) % 1000).randint(0, 99, (18, 20, 3)).astype(np.int16)
        (path.parent / "pet.nii").write_bytes(nifti(values))
    by_patient, by_file = (folder(root, split_by=how).open() for how in ("auto", "file"))
    for splits, is_together in ((by_patient, True), (by_file, False)):
        patients = [
            {Path(part.source.location(int(index)).file).parent.name for index in part.index_N}
            for part in (splits.train, splits.val)
        ]
        assert (not patients[0] & patients[1]) is is_together


def test_patients_stay_together_beside_photographs():
    paths = [f"ct/{name}" for name in ("p1/1.dcm", "p1/2.dcm", "p1/note.png", "p2/1.png", "p2/2.png", "3.png", "4.dcm")]
    files = ImageFiles(paths, owners=[owner_of(path, "ct") for path in paths])
    assert np.unique(folder("ct").units(files), return_inverse=True)[1].tolist() == [2, 2, 2, 3, 4, 0, 1]
    assert folder("ct").units(ImageFiles(paths[3:6])) is None
    by_folder = folder("ct", split_by="folder").units(files)
    assert by_folder is not None and by_folder[3] == by_folder[4] and folder("ct", split_by="file").units(files) is None


def test_the_owner_is_the_folder_below_the_class():
    assert owner_of("root/ill/p1/series2/3.dcm", "root/ill") == "root/ill/p1"
    assert owner_of("root/ill/3.dcm", "root/ill") == "root/ill/3.dcm"


def test_photographs_in_folders_are_split_by_file_unless_told_otherwise(tmp_path):
    for name in ("cat", "dog"):
        for owner in range(4):
            (tmp_path / name / f"{name}{owner}").mkdir(parents=True)
            for number in range(3):
                pixels = np.full((8, 8), 60 * owner + 20 * number, np.uint8)
                Image.fromarray(pixels).save(tmp_path / name / f"{name}{owner}" / f"{number}.png")
    settings = {"window": "auto", "val_fraction": 0.25}
    for split_by, count in (("auto", 6), ("file", 6), ("folder", 2)):
        splits = folder(tmp_path, split_by=split_by, **settings).open()
        owners = {Path(splits.val.source.location(int(index)).file).parent for index in splits.val.index_N}
        assert len(splits.val) == 6 and (split_by != "folder" or len(owners) == count)


def test_tables_name_volumes(volumes, tmp_path):
    paths = sorted(volumes.rglob("*.nii.gz"))
    rows = [f"{path},{'ill' if path.parent.name.endswith('i') else 'well'}" for path in paths]
    (tmp_path / "a.csv").write_text("\n".join(["image,labels", *rows]))
    settings = {"channels": 1, "image_size": 8, "window": [300, 2000], "val_fraction": 0.25}
    splits = ImageTable(train=str(tmp_path / "a.csv"), **settings).open()
    assert (len(splits.train), len(splits.val)) == (36, 12)
    for subset in (splits.train, splits.val):
        places = [subset.source.location(int(index)) for index in subset.index_N]
        _, set_BK = subset.fetch(np.arange(len(subset)), seed=0, epoch=0, train=False)
        expected = [[int(Path(place.file).parent.name.endswith(letter)) for letter in "iw"] for place in places]
        assert set_BK.tolist() == expected
        assert subset.checks().check(2).classes == [expected[2].index(1)]
    assert len(ImageTable(train=str(tmp_path / "a.csv"), split_by="folder", **settings).open().val) == 12


def test_units_are_divided_as_samples_are():
    division = Division(0.25, 0.25, 0)
    label_U = np.array([0] * 4 + [1] * 4)
    unit_N = np.repeat(np.arange(8), 3)[::-1]
    parts = division.divide(label_U[unit_N], unit_N=unit_N)
    units = division.divide(label_U)
    for part, unit in zip(parts, units):
        assert sorted(set(unit_N[part])) == unit.tolist() and len(part) == 3 * len(unit)


def test_a_window_is_asked_for_before_the_work(volumes):
    with pytest.raises(DataError, match=r"slice 0 of '.*ct.nii.gz' cannot be read as an image \(its values, from .*"):
        folder(volumes, window="auto").open()


@pytest.mark.parametrize("axis, shape", [("axial", (4, 24, 20)), ("sagittal", (20, 4, 24)), ("j", (24, 4, 20))])
def test_direction_of_slices(volumes, axis, shape):
    (path,) = [str(each) for each in volumes.rglob("p0i/ct.nii.gz")]
    encoded = sliced(ImageFiles([path]), axis)
    assert len(encoded) == shape[0] and encoded.read(1)[0].size == shape[:0:-1]
    assert encoded.paths[2] == f"{path}:2" and encoded.location(2) == DataLocation(path, record=2)
    splits = folder(volumes, slice_axis=axis).open()
    assert splits.decoding.slice_axis == axis
    assert Decoding.from_json(splits.decoding.to_json()) == splits.decoding
    assert ("slice_axis" in splits.decoding.to_json()) == (axis != "axial")


def test_images_without_volumes_stay_files(tmp_path):
    files = ImageFiles([tmp_path / "a.png"])
    assert sliced(files, "axial") is files
    mixed = SlicedFiles(
        ImageFiles([tmp_path / "a.png", tmp_path / "b.nii"], np.array([4, 7])), "axial", is_strict=False
    )
    assert mixed.paths == [str(tmp_path / "a.png"), str(tmp_path / "b.nii")] and mixed.label_N.tolist() == [4, 7]
    with pytest.raises(DataError, match="b.nii' cannot be read: No such file"):
        mixed.read(1)


def test_the_cache_keeps_the_volumes_used_last():
    cache, loaded = VolumeCache(max_bytes=20), []

    def get(key):
        return cache.get(key, lambda: loaded.append(key) or np.zeros(8, np.uint8))

    for key in "abacab":
        get(key)
    assert loaded == ["a", "b", "c", "b"]  # b was used longest ago when c came
    large = np.zeros(21, np.uint8)
    assert cache.get("large", lambda: large) is large and cache.get("large", lambda: 0) is large


def test_masks_of_volumes(labelled):
    splits = SegmentationFolder(root=str(labelled), channels=1, window="percentile", image_size=32).open()
    assert (len(splits.train), len(splits.val)) == (25, 5)
    assert len({splits.val.source.location(int(index)).file for index in splits.val.index_N}) == 1
    source = splits.train.source
    image_BCHW, mask_BHW, size_B4 = source.fetch(np.array([7]), seed=0, epoch=0, train=False)
    content = gzip.decompress((labelled / "masks" / "1.nii.gz").read_bytes())
    label_XYZ = np.frombuffer(content[352:], np.uint8).reshape((24, 20, 5), order="F")
    # LPS is stored as slices show it: columns to the left, rows to posterior.
    assert np.array_equal(mask_BHW[0, :20, :24], label_XYZ[:, :, 2].T)
    assert (
        size_B4[0].tolist() == [20, 24, 20, 24] and image_BCHW[0, 0, :20, :24][mask_BHW[0, :20, :24] == 1].min() > 100
    )


def test_masks_of_another_orientation_are_turned(labelled, tmp_path):
    """The same label volume, stored in another order of axes."""
    root = tmp_path / "mr"
    (root / "images").mkdir(parents=True), (root / "masks").mkdir()
    (root / "classes.txt").write_text("background\ntumour\n")
    values = np.random.RandomState(0).randint(0, 99, (6, 7, 3)).astype(np.int16)
    labels = (values > 50).astype(np.uint8)
    turned_44 = np.array([[0, 0, -1.0, 5], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    for number in range(2):
        (root / "images" / f"{number}.nii").write_bytes(nifti(values))
        (root / "masks" / f"{number}.nii").write_bytes(nifti(labels.transpose(1, 2, 0)[:, :, ::-1].copy(), turned_44))
    source = SegmentationFolder(root=str(root), channels=1, window="full", image_size=8).open().train.source
    image_BCHW, mask_BHW, _ = source.fetch(np.array([1]), seed=0, epoch=0, train=False)
    shown = image_BCHW[0, 0, :7, :6] > 50.5 / 32767 * 255
    assert np.array_equal(shown, mask_BHW[0, :7, :6] == 1)


@pytest.mark.parametrize(
    "labels, affine_44, said",
    [
        (np.zeros((6, 7, 4), np.uint8), RAS, "has 4 x 7 x 6 axial slices, rows and columns, and its image"),
        (np.zeros((6, 7, 3), np.uint8), LPS, "mm away from its image .*, by their headers"),
        (np.zeros((6, 7, 3), np.uint8), np.diag([1.0, 1, 1, 1]) + np.eye(4, k=3) * 1.5, "1.5 mm away from its image"),
        (np.full((6, 7, 3), 3, np.uint8), RAS, "holds the value 3, which is no class"),
        (np.full((6, 7, 3), 0.5, np.float32), RAS, "its values are no whole numbers"),
        (np.zeros((6, 7, 3), np.uint8), None, "does not say its orientation"),
    ],
)
def test_masks_that_do_not_fit_are_refused(tmp_path, labels, affine_44, said):
    (tmp_path / "images").mkdir(), (tmp_path / "masks").mkdir()
    (tmp_path / "classes.txt").write_text("background\ntumour\n")
    for number in range(2):
        (tmp_path / "images" / f"{number}.nii").write_bytes(nifti(np.ones((6, 7, 3), np.int16)))
        (tmp_path / "masks" / f"{number}.nii").write_bytes(nifti(labels, affine_44))
    with pytest.raises(DataError, match=said):
        SegmentationFolder(root=str(tmp_path), channels=1, window="full", image_size=8).open()


def test_masks_may_lie_beside_their_images_by_the_smallest_spacing(tmp_path):
    (tmp_path / "images").mkdir(), (tmp_path / "masks").mkdir()
    (tmp_path / "classes.txt").write_text("background\ntumour\n")
    grid_44 = np.diag([2.0, 2.0, 5.0, 1.0])
    for number in range(2):
        (tmp_path / "images" / f"{number}.nii").write_bytes(nifti(np.ones((6, 7, 3), np.int16), grid_44))
    for move, is_near in ((1.9, True), (2.5, False)):
        moved_44 = grid_44 + np.eye(4, k=3) * move
        for number in range(2):
            (tmp_path / "masks" / f"{number}.nii").write_bytes(nifti(np.zeros((6, 7, 3), np.uint8), moved_44))
        dataset = SegmentationFolder(root=str(tmp_path), channels=1, window="full", image_size=8)
        if is_near:
            assert len(dataset.open().train) == 3
        else:
            with pytest.raises(DataError, match="2.5 mm away from its image"):
                dataset.open()


def test_masks_of_another_kind_are_refused(tmp_path):
    (tmp_path / "images").mkdir(), (tmp_path / "masks").mkdir()
    (tmp_path / "classes.txt").write_text("background\ntumour\n")
    for number in range(2):
        (tmp_path / "images" / f"{number}.nii").write_bytes(nifti(np.ones((6, 7, 3), np.int16)))
        Image.fromarray(np.zeros((7, 6), np.uint8)).save(tmp_path / "masks" / f"{number}.png")
    with pytest.raises(DataError, match="0.png' is an image, and its image slice 0 of .* is a volume"):
        SegmentationFolder(root=str(tmp_path), channels=1, window="full", image_size=8).open()
    (tmp_path / "masks" / "1.png").unlink()
    with pytest.raises(DataError, match=r"1.nii' has no mask: there is no '.*1.nii.gz'"):
        SegmentationFolder(root=str(tmp_path), channels=1, window="full", image_size=8).open()


@pytest.mark.slow
def test_slices_that_are_alike_are_no_duplicates(tmp_path, capfd):
    for name in ("ill", "well"):
        for number in range(3):
            values = np.zeros((6, 7, 3), np.uint8)
            values[:, :, 1] = 10 * number + (name == "ill")
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number}.nii").write_bytes(nifti(values))
    (tmp_path / "well" / "copy.nii").write_bytes((tmp_path / "well" / "1.nii").read_bytes())
    command = ["data", "check", "dataset=image_folder", f"dataset.root={tmp_path}", "dataset.val_fraction=0.3"]
    assert run(command) == 2
    output = "".join(capfd.readouterr())
    assert "copy.nii" in output and "0.nii" not in output.replace("copy", "")


def test_damaged_volumes_are_named(volumes, tmp_path):
    root = write_volumes(tmp_path / "ct", count=3, size=(18, 20, 2))
    path = next(root.rglob("p1w/ct.nii.gz"))
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content[:-10]))
    source = folder(root).open().train.source
    with pytest.raises(LoaderError, match=r"slice 0 of '.*p1w/ct.nii.gz' cannot be read as an image \(it is cut off"):
        for index in range(len(source)):
            source.fetch(np.array([index]), seed=0, epoch=0, train=False)
    path.write_bytes(b"no volume")
    with pytest.raises(DataError, match=r"p1w/ct.nii.gz' cannot be read as a volume \(it does not begin with a header"):
        folder(root).open()


@pytest.mark.slow
def test_volumes_are_classified_exported_and_predicted(volumes, tmp_path, capfd):
    run_dir = tmp_path / "run"
    settings = ("dataset=image_folder", "model=lenet", "dataset.channels=1", "trainer.max_epochs=4")
    train_here(run_dir, *settings, f"dataset.root={volumes}", "dataset.window=[300,2000]", "dataset.batch_size=8")
    kept = open_checkpoint(str(run_dir)).state["run"]["input"]
    assert kept["mean"] != [pytest.approx(0.449, abs=1e-2)]
    capfd.readouterr()
    (path,) = volumes.rglob("p2w/ct.nii.gz")
    assert run(["predict", str(run_dir), str(path)]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["file"] for row in rows] == [f"{path}:{number}" for number in range(4)]
    assert {row["class"] for row in rows} == {"well"}
    assert run(["export", str(run_dir), f"out={tmp_path / 'exported'}"]) == 0
    exported = OpenedExport(str(tmp_path / "exported"))
    found = list(exported_images.predict(exported, path.read_bytes(), str(path)))
    assert [row["file"] for row in found] == [row["file"] for row in rows]
    for row, other in zip(rows, found):
        assert row["probability"] == pytest.approx(other["probability"], abs=1e-4)
    capfd.readouterr()
    (tmp_path / "bad.nii").write_bytes(b"x" * 500)
    assert run(["predict", str(run_dir), str(tmp_path / "bad.nii")]) == 2
    assert "bad.nii' cannot be read as a volume" in capfd.readouterr().err
    assert run(["predict", str(run_dir), str(tmp_path / "bad.nii"), str(path), "skip_unreadable=true"]) in (0, 1)
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(rows) == 4


def test_label_volumes_of_several_files(tmp_path):
    """Two volumes beside an image and a DICOM file of frames, which have no label volume."""
    paths = [tmp_path / name for name in ("a.png", "b.nii", "c.dcm", "d.NII.GZ")]
    paths[0].write_bytes(b"")
    paths[1].write_bytes(nifti(np.zeros((2, 3, 4), np.int16), LPS))
    paths[2].write_bytes(frames_of_dicom())
    paths[3].write_bytes(gzip.compress(nifti(np.zeros((5, 6, 2), np.int16), LPS)))
    decoding = Decoding(shape=(1, 8, 8), frame=(8, 8))
    values = [0, 70, 300]
    source = MaskedImages(sliced(ImageFiles(paths), "axial"), None, MaskCoding(values), decoding, [0.5])
    found = label_volumes(source, values)
    assert [(Path(file.location).name, file.ending, file.samples) for file in found] == [
        ("b.nii", ".nii", range(1, 5)),
        ("d.NII.GZ", ".nii.gz", range(8, 10)),
    ]
    _, last = found
    class_ZHW = np.random.RandomState(0).randint(0, 3, (2, 6, 5))
    assert [last.add(8 + number, class_HW) for number, class_HW in enumerate(class_ZHW)] == [False, True]
    image = pytest.importorskip("nibabel").Nifti1Image.from_bytes(gzip.decompress(last.encode()))
    assert np.array_equal(np.asarray(image.dataobj), np.array(values)[class_ZHW].T)
    (few, _) = label_volumes(source, [0, 1, 255])
    assert few.samples == range(1, 5)
    assert [few.add(number, np.full((3, 2), 2)) for number in few.samples] == [False] * 3 + [True]
    image = pytest.importorskip("nibabel").Nifti1Image.from_bytes(few.encode())
    assert image.get_data_dtype() == np.uint8 and (np.asarray(image.dataobj) == 255).all()


def frames_of_dicom():
    pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
    from dicom_files import describe_frames, encode

    return encode(describe_frames(np.zeros((3, 8, 9), np.uint16)))


@pytest.mark.slow
def test_label_volumes_are_learned_and_predicted(labelled, tmp_path, capfd):
    run_dir = tmp_path / "run"
    train_here(
        run_dir,
        "task=segmentation",
        "dataset=segmentation_folder",
        f"dataset.root={labelled}",
        "dataset.channels=1",
        "dataset.window=percentile",
        "trainer.max_epochs=2",
        "dataset.batch_size=8",
    )
    assert run(["predict", str(run_dir), str(labelled / "images" / "1.nii.gz"), f"folder={tmp_path / 'masks'}"]) == 0
    assert "1 file written to" in capfd.readouterr().err
    (label_path,) = (tmp_path / "masks").iterdir()
    nibabel = pytest.importorskip("nibabel")
    image, source = nibabel.load(label_path), nibabel.load(labelled / "images" / "1.nii.gz")
    assert label_path.name == "1.nii.gz" and image.shape == source.shape == (24, 20, 5)
    assert np.array_equal(image.affine, source.affine)
    # The masks that are predicted for the slices as images of their own: LPS is stored as slices show it.
    for number in range(5):
        shown = np.asarray(source.dataobj)[:, :, number].T
        low, high = np.percentile(np.asarray(source.dataobj), [0.5, 99.5])
        pixels = np.clip((shown - low) / (high - low), 0, 1).astype(np.float32)
        Image.fromarray(pixels).save(tmp_path / f"{number}.tif")
    files = [str(tmp_path / f"{number}.tif") for number in range(5)]
    assert run(["predict", str(run_dir), *files, f"folder={tmp_path / 'png'}", "dataset.window=full"]) == 0
    label_XYZ = np.asarray(image.dataobj)
    for number in range(5):
        with Image.open(tmp_path / "png" / f"{number}.png") as mask:
            assert np.array_equal(np.asarray(mask), label_XYZ[:, :, number].T)
    assert len(np.unique(label_XYZ)) == 2
    # Axes in another order and direction: the same labels at the same places.
    turned = nibabel.as_closest_canonical(source).slicer[::-1].get_fdata().transpose(2, 0, 1).astype(np.int16)
    affine_44 = np.array([[0, -1.0, 0, 0], [0, 0, 1.0, -19], [1.0, 0, 0, 0], [0, 0, 0, 1]])
    (tmp_path / "turned.nii").write_bytes(nifti(np.ascontiguousarray(turned), affine_44))
    command = ["predict", str(run_dir), str(tmp_path / "turned.nii"), f"folder={tmp_path / 'turned'}"]
    assert run([*command, f"output={tmp_path / 'rows.jsonl'}"]) == 0
    found = nibabel.load(tmp_path / "turned" / "turned.nii")
    assert np.array_equal(found.affine, affine_44) and found.shape == (5, 24, 20)
    canonical = [np.asarray(nibabel.as_closest_canonical(each).dataobj) for each in (found, image)]
    assert np.array_equal(*canonical)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows] == [f"{tmp_path / 'turned.nii'}:{number}" for number in range(5)]
    assert {row["mask"] for row in rows} == {str(tmp_path / "turned" / "turned.nii")}
    assert run(["predict", str(run_dir), str(labelled / "images"), f"folder={labelled / 'images'}"]) == 2
    assert "would be written, and it is one of the files to predict for" in capfd.readouterr().err
    require_series_predicted(run_dir, np.asarray(source.dataobj), tmp_path)
    capfd.readouterr()
    values = np.ones((24, 20, 5), np.float32)
    values[:, :, 4] = np.nan
    (tmp_path / "part.nii").write_bytes(nifti(values))
    command = ["predict", str(run_dir), str(tmp_path / "part.nii"), f"folder={tmp_path / 'part'}"]
    assert run([*command, "dataset.window=[1,2]", "skip_unreadable=true"]) == 0
    printed = capfd.readouterr()
    assert [json.loads(line)["mask"] for line in printed.out.splitlines()] == [None] * 4
    assert "0 files written to" in printed.err
    assert not list(tmp_path.glob("part/*"))
    assert run(["eval", str(run_dir)]) == 0


def require_series_predicted(run_dir, values_XYZ, folder):
    """A DICOM series has one label volume, with the masks that are predicted for its files one by one."""
    pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
    from dicom_files import dicom

    series = folder / "series"
    series.mkdir()
    for number in range(5):
        place = {"ImagePositionPatient": [0, 0, 5 - number], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        pixels = np.ascontiguousarray(values_XYZ[:, :, number].T.astype(np.uint16))
        (series / f"{number}.dcm").write_bytes(dicom(pixels, PixelSpacing=[1, 1], **place))
    assert run(["predict", str(run_dir), str(series), f"folder={folder / 'joined'}"]) == 0
    (path,) = (folder / "joined").iterdir()
    assert path.name == "series.nii.gz"
    image = pytest.importorskip("nibabel").load(path)
    assert np.array_equal(image.affine, np.diag([-1, -1, 1, 1]) + [[0] * 4, [0] * 4, [0, 0, 0, 1], [0] * 4])
    for number in range(5):
        file = series / f"{number}.dcm"
        assert run(["predict", str(run_dir), str(file), f"folder={folder / 'single'}"]) == 0
        with Image.open(folder / "single" / f"{number}.png") as mask:
            assert np.array_equal(np.asarray(mask), np.asarray(image.dataobj)[:, :, 4 - number].T)
