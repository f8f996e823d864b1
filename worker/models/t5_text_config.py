"""The published configuration of a T5 encoder, as transformers writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.models.clip_text_config import IRRELEVANT
from worker.models.options import Option, is_number, is_size, one_of, read_options

OPTIONS = {
    "model_type": one_of("t5"),
    "vocab_size": Option(32128, is_size),
    "d_model": Option(512, is_size),
    "d_kv": Option(64, is_size),
    "d_ff": Option(2048, is_size),
    "num_layers": Option(6, is_size),
    "num_heads": Option(8, is_size),
    "relative_attention_num_buckets": Option(32, is_size),
    "relative_attention_max_distance": Option(128, is_size),
    "layer_norm_epsilon": Option(1e-6, is_number),
    "feed_forward_proj": Option("relu", "gated-gelu".__eq__),
    # Both follow from the option above.
    "dense_act_fn": one_of("gelu_new"),
    "is_gated_act": one_of(True),
    "add_cross_attention": one_of(False),
}

# The decoder, which is not used, training and bookkeeping.
_IRRELEVANT = f"""{IRRELEVANT}
    is_decoder is_encoder_decoder num_decoder_layers dropout_rate classifier_dropout eos_token_id use_cache
    output_past n_positions scale_decoder_outputs
    """


@dataclass(frozen=True)
class T5TextConfig:
    """Sizes of a T5 encoder; `d_kv` is a head's width, whatever `d_model` is."""

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_heads: int
    buckets: int
    max_distance: int
    layer_norm_epsilon: float

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "T5TextConfig":
        """Read a published `config.json`; raises CheckpointError for what is not handled, T5 before v1.1 included."""
        options = read_options("T5 text encoder", raw, OPTIONS, _IRRELEVANT)
        return cls(
            vocab_size=options["vocab_size"],
            d_model=options["d_model"],
            d_kv=options["d_kv"],
            d_ff=options["d_ff"],
            num_layers=options["num_layers"],
            num_heads=options["num_heads"],
            buckets=options["relative_attention_num_buckets"],
            max_distance=options["relative_attention_max_distance"],
            layer_norm_epsilon=float(options["layer_norm_epsilon"]),
        )
