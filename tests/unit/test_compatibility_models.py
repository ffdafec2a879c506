"""Architectures and what their forward captures."""

import pytest
from compatibility_trees import CAPTURING_FORWARD, LOOP, MODELS, VLLM, client, symbols, with_forward

from eagle3_data.compatibility.client.patched import check_patches
from eagle3_data.compatibility.vllm.capture import check_capture, find_capture
from eagle3_data.compatibility.vllm.models import ModelRegistry, check_architecture


def llama(tmp_path, forward=CAPTURING_FORWARD, changes=None):
    """A tree whose Llama has this forward, and its architecture."""
    table = symbols(tmp_path, {**with_forward(forward), **(changes or {})})
    return table, ModelRegistry(table).describe("LlamaForCausalLM")


def ids(table, architecture, layers, count=32):
    return [(finding.id, finding.level) for finding in check_capture(table, architecture, layers, count)]


def test_a_known_architecture_has_its_decoder_and_its_eagle3_flag(tmp_path):
    table = symbols(tmp_path)
    llama_found, findings = check_architecture(ModelRegistry(table), "LlamaForCausalLM")
    assert (llama_found.decoder.name, llama_found.supports_eagle3, findings) == ("LlamaModel", True, [])
    old, findings = check_architecture(ModelRegistry(table), "OldForCausalLM")
    assert (old.decoder.name, [(f.id, f.level) for f in findings]) == ("OldModel", [("not-eagle3", "fail")])
    assert findings[0].vllm_location == f"{MODELS}/old.py:10"


def test_a_wrapper_is_followed_to_the_language_model_its_configuration_names(tmp_path):
    registry = ModelRegistry(symbols(tmp_path))
    assert (
        registry.describe("WrapperForConditionalGeneration", "LlamaForCausalLM").decoder.name == "LlamaModel"
    )
    assert registry.describe("WrapperForConditionalGeneration", "NobodysForCausalLM").decoder is None


def test_a_wrapper_is_followed_to_the_architecture_it_names_itself(tmp_path):
    source = VLLM[f"{MODELS}/wrapper.py"].replace(
        "config.text_config", "config.text_config, architectures=['LlamaForCausalLM']"
    )
    registry = ModelRegistry(symbols(tmp_path, {f"{MODELS}/wrapper.py": source}))
    assert registry.describe("WrapperForConditionalGeneration", "").decoder.name == "LlamaModel"


def test_an_unknown_architecture_fails_unless_the_transformers_backend_may_take_it(tmp_path):
    _, findings = check_architecture(ModelRegistry(symbols(tmp_path / "a")), "NobodysForCausalLM")
    assert [(f.id, f.level) for f in findings] == [("architecture-unregistered", "fail")]
    with_backend = VLLM[f"{MODELS}/registry.py"].replace(
        "_MODELS = {", '_MODELS = {\n    "TransformersForCausalLM": ("t", "T"),'
    )
    _, findings = check_architecture(
        ModelRegistry(symbols(tmp_path / "b", {f"{MODELS}/registry.py": with_backend})), "NobodysForCausalLM"
    )
    assert [(f.id, f.level) for f in findings] == [("architecture-unregistered", "unknown")]


def test_a_forward_that_captures_after_each_layer_reaches_every_id(tmp_path):
    table, architecture = llama(tmp_path)
    _, capture = find_capture(table, architecture)
    assert capture.depths == {k: k for k in range(7)}
    assert ids(table, architecture, (0, 2, 16, 29, 32)) == []


BEFORE = f"""
def forward(self, hidden_states, residual=None):
    aux_hidden_states = []
    {LOOP}
        if idx in self.aux_hidden_state_layers:
            aux_hidden_states.append(hidden_states + residual)
        hidden_states, residual = layer(hidden_states, residual)
    if not get_pp_group().is_last_rank:
        return IntermediateTensors(hidden_states)
    LAST
    return hidden_states, aux_hidden_states
"""
CATCHES_LAST = (
    "if self.end_layer in self.aux_hidden_state_layers:\n        aux_hidden_states.append(hidden_states +"
    " residual)"
)


def test_a_forward_that_captures_before_each_layer_misses_the_last_id_and_breaks_at_zero(tmp_path):
    table, architecture = llama(tmp_path, BEFORE.replace("LAST", "pass"))
    assert ids(table, architecture, (2, 16, 29, 32)) == [("layer-not-captured", "fail")]
    assert ids(table, architecture, (2, 16, 29)) == []
    (finding,) = check_capture(table, architecture, (0, 2, 16), 32)
    assert finding.id == "layer-not-captured" and "does not exist yet" in finding.title


def test_a_capture_after_the_loop_mends_the_last_id(tmp_path):
    table, architecture = llama(tmp_path, BEFORE.replace("LAST", CATCHES_LAST))
    assert ids(table, architecture, (2, 16, 29, 32)) == []


def test_a_forward_that_counts_from_another_layer_is_found(tmp_path):
    forward = BEFORE.replace("if idx in", "if idx + 1 in").replace("LAST", "pass")
    table, architecture = llama(tmp_path, forward)
    findings = check_capture(table, architecture, (2, 16, 29, 32), 32)
    assert [f.id for f in findings] == ["layer-shifted"]
    assert "captures id k after k-1 layers" in findings[0].title


def test_a_forward_that_captures_nothing_fails_for_every_id(tmp_path):
    table, architecture = llama(
        tmp_path, f"def forward(self, x):\n    {LOOP}\n        x = layer(x)\n    return x"
    )
    (finding,) = check_capture(table, architecture, (2, 32), 32)
    assert (finding.id, finding.level) == (
        "layer-not-captured",
        "fail",
    ) and "2 and 32 (the last)" in finding.title


def test_layers_taken_by_index_are_understood(tmp_path):
    forward = """
def forward(self, x, residual):
    aux = self._maybe_add_hidden_state([], self.start_layer, x, residual)
    for i in range(self.start_layer, self.end_layer):
        layer = self.layers[i]
        x, residual = layer(x, residual)
        self._maybe_add_hidden_state(aux, i + 1, x, residual)
    return x, aux
"""
    table, architecture = llama(tmp_path, forward)
    assert find_capture(table, architecture)[1].depths == {k: k for k in range(7)}


@pytest.mark.parametrize(
    "forward",
    [
        "def forward(self, x):\n    return self.run_layers(x, self.aux_hidden_state_layers)",
        (
            f"def forward(self, x):\n    {LOOP}\n        x = layer(x)\n    return x,"
            " self.pick(self.aux_hidden_state_layers)"
        ),
    ],
)
def test_a_form_that_is_not_understood_is_said_to_be_unknown(tmp_path, forward):
    table, architecture = llama(tmp_path, forward)
    assert ids(table, architecture, (2, 32)) == [("capture-unknown", "unknown")]


def test_a_state_that_is_not_the_residual_stream_is_pointed_out(tmp_path):
    forward = (
        BEFORE.replace("if idx in", "if (idx) in")
        .replace("append(hidden_states + residual)", "append(mix(hidden_states).mean(dim=1))")
        .replace("LAST", CATCHES_LAST)
    )
    table, architecture = llama(tmp_path, forward)
    assert ids(table, architecture, (2, 32)) == [("capture-transformed", "unknown")]


def test_the_transformers_backend_captures_from_id_one(tmp_path):
    backend = """
        from vllm.model_executor.models.interfaces import SupportsEagle3

        class LlamaForCausalLM(SupportsEagle3):
            def set_aux_hidden_state_layers(self, layers):
                for layer in layers:
                    name = self._layer_names[layer - 1]
    """
    registry = VLLM[f"{MODELS}/registry.py"].replace(
        '("llama", "LlamaForCausalLM")', '("transformers", "LlamaForCausalLM")'
    )
    table, architecture = llama(
        tmp_path, changes={f"{MODELS}/transformers.py": backend, f"{MODELS}/registry.py": registry}
    )
    assert ids(table, architecture, (2, 16, 32)) == []
    assert ids(table, architecture, (0, 2, 32)) == [("layer-not-captured", "fail")]


PATCHING_CLIENT = """
import types
from vllm.model_executor.models.interfaces import SupportsEagle3

def patched(self, input_ids, positions):
    hidden_states = self.{embed}(input_ids)
    for idx, layer in enumerate(islice(self.layers, self.start_layer, self.end_layer)):
        hidden_states, residual = layer(hidden_states=hidden_states, positions=positions, {residual}=None)
    self._extension.keep(hidden_states)

class Worker:
    def setup(self, model):
        if not supports_eagle3(model):
            raise ValueError
        base = model.{inner}
        base._extension = self
        base.forward = types.MethodType(patched, base)
"""


@pytest.mark.parametrize(
    ("embed", "residual", "inner", "expected"),
    [
        ("embed_input_ids", "residual", "model", []),
        ("get_input_embeddings", "residual", "model", ["missing-model-method"]),
        ("embed_input_ids", "rest", "model", ["unexpected-argument", "missing-argument"]),
        ("embed_input_ids", "residual", "language_model", ["missing-model-attribute"]),
    ],
)
def test_a_patched_forward_must_fit_the_model_it_is_put_into(tmp_path, embed, residual, inner, expected):
    table, architecture = llama(tmp_path)
    source = PATCHING_CLIENT.format(embed=embed, residual=residual, inner=inner)
    assert [f.id for f in check_patches(client(source), architecture, table)] == expected


def test_a_patching_client_that_demands_eagle3_fails_where_it_is_not_given(tmp_path):
    table = symbols(tmp_path)
    source = PATCHING_CLIENT.format(embed="embed_tokens", residual="residual", inner="model")
    findings = check_patches(client(source), ModelRegistry(table).describe("OldForCausalLM"), table)
    assert "not-eagle3" in [f.id for f in findings if f.level == "fail"]
    assert next(f for f in findings if f.id == "not-eagle3").client_location == "client.py:13"
