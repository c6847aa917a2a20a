# Types for `mxtrain.__getattr__`.
from mxtrain.api import Run as Run
from mxtrain.api import Sweep as Sweep
from mxtrain.api import compose as compose
from mxtrain.api import diff as diff
from mxtrain.api import dry_run as dry_run
from mxtrain.api import evaluate as evaluate
from mxtrain.api import explain as explain
from mxtrain.api import load as load
from mxtrain.api import lr_find as lr_find
from mxtrain.api import predict as predict
from mxtrain.api import soup as soup
from mxtrain.api import sweep as sweep
from mxtrain.api import train as train
from mxtrain.api import verify as verify
from mxtrain.custom_loop import Session as Session
from mxtrain.custom_loop import session as session
from mxtrain.errors import CheckpointError as CheckpointError
from mxtrain.errors import ConfigError as ConfigError
from mxtrain.errors import DamagedCheckpoint as DamagedCheckpoint
from mxtrain.errors import DataError as DataError
from mxtrain.errors import DownloadError as DownloadError
from mxtrain.errors import MxtrainError as MxtrainError
from mxtrain.errors import NoCheckpoint as NoCheckpoint
from mxtrain.errors import NonFiniteError as NonFiniteError
from mxtrain.errors import NotProven as NotProven
from mxtrain.errors import RunDirectoryError as RunDirectoryError
from mxtrain.errors import UnreadableCheckpoint as UnreadableCheckpoint
from mxtrain.errors import WeightsError as WeightsError
from mxtrain.errors import WorseThanAllowed as WorseThanAllowed
from mxtrain.workflows.clean import clean as clean
from mxtrain.workflows.doctor import doctor as doctor
from mxtrain.workflows.predict import Predictions as Predictions
from mxtrain.workflows.report import report as report
from mxtrain.workflows.runs import runs as runs
from mxtrain.workflows.serve import serve as serve

__version__: str
