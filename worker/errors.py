"""Every error that this project raises on purpose.

WorkerError
├── InvalidRequest       the client's fault: one line per bad field, with its value and its bounds
├── GenerationError      a valid request of which no answer can be made; the text goes to the client
│   └── DeviceError      the device, or what drives it, failed; the worker is not trusted with another job
│       └── OutOfMemory  its memory does not suffice
├── ProgramFault         a stored program that cannot be used; another one is compiled instead
├── JobStopped           nobody waits for the answer any more
├── BatchError           a batch cannot begin, or go on for now; its journal keeps what is done
└── StartupError         the process ends before it takes a job
    ├── SettingsError    an environment variable: its name, its value and an example
    ├── CheckpointError  weights or configurations: all differences in one message
    └── BuildError       the builder: network, access, disk, a folder that is not its own
"""


class WorkerError(Exception):
    """Root of the tree; its text is one clear message for people."""


class InvalidRequest(WorkerError):
    """A job that cannot be run as it was asked; `problems` has one line per bad field."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("; ".join(problems))


class GenerationError(WorkerError):
    """No picture, or no answer, could be made of a valid request."""


class DeviceError(GenerationError):
    """The device failed in the middle of a job."""


class OutOfMemory(DeviceError):
    """The device's memory did not suffice, with one picture in a pass either."""


class JobStopped(WorkerError):
    """The job was cancelled from outside; there is no one to answer."""


class ProgramFault(WorkerError):
    """A stored program that cannot be used; the text says why."""


class BatchError(WorkerError):
    """A batch's client cannot begin or go on: arguments, files, access, an outage; it can be called again."""


class StartupError(WorkerError):
    """The worker, or the builder, cannot begin."""


class SettingsError(StartupError):
    """An environment variable holds what cannot be used."""


class CheckpointError(StartupError):
    """Weights, configurations or a baked folder that are not what they should be."""


class BuildError(StartupError):
    """The builder cannot fetch or write a model: network, access, disk, or a folder that is not its own."""
