"""The published configuration of a CLIP text encoder, as transformers writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.models.options import Option, is_number, is_size, one_of, read_options

END_TOKEN = 49407
# What transformers wrote before it knew CLIP's end token; no tokenizer has it.
WRONG_END_TOKEN = 2

OPTIONS = {
    "model_type": one_of("clip_text_model"),
    "vocab_size": Option(49408, is_size),
    "hidden_size": Option(512, is_size),
    "intermediate_size": Option(2048, is_size),
    "projection_dim": Option(512, is_size),
    "num_hidden_layers": Option(12, is_size),
    "num_attention_heads": Option(8, is_size),
    "max_position_embeddings": Option(77, is_size),
    "hidden_act": one_of("quick_gelu", "gelu"),
    "layer_norm_eps": Option(1e-5, is_number),
    "eos_token_id": Option(END_TOKEN, is_size),
    "is_decoder": one_of(False),
    "is_encoder_decoder": one_of(False),
    "add_cross_attention": one_of(False),
}

# Training, text generation and bookkeeping, which transformers writes into every configuration.
IRRELEVANT = """
    architectures attn_implementation torch_dtype dtype use_bfloat16 transformers_version
    tokenizer_class torchscript attention_dropout dropout initializer_factor initializer_range
    gradient_checkpointing pruned_heads
    tie_word_embeddings tie_encoder_decoder cross_attention_hidden_size chunk_size_feed_forward
    return_dict output_hidden_states output_attentions tf_legacy_loss problem_type finetuning_task
    task_specific_params id2label label2id num_labels prefix bos_token_id pad_token_id sep_token_id
    decoder_start_token_id max_length min_length do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty
    suppress_tokens begin_suppress_tokens
    """


@dataclass(frozen=True)
class CLIPTextConfig:
    """Sizes of a text encoder; `projection_dim` is None where nothing is projected."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    hidden_act: str
    layer_norm_eps: float
    end_token: int
    projection_dim: int | None

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], *, projected: bool) -> "CLIPTextConfig":
        """Read a published `config.json`; raises CheckpointError for what is not handled.

        Old files name token 2 as the end, which no prompt contains: it is then the last of CLIP's own tokens.
        """
        options = read_options("CLIP text encoder", raw, OPTIONS, IRRELEVANT)
        end_token = options["eos_token_id"]
        if end_token == WRONG_END_TOKEN:
            end_token = min(END_TOKEN, options["vocab_size"] - 1)
        return cls(
            vocab_size=options["vocab_size"],
            hidden_size=options["hidden_size"],
            intermediate_size=options["intermediate_size"],
            num_hidden_layers=options["num_hidden_layers"],
            num_attention_heads=options["num_attention_heads"],
            max_position_embeddings=options["max_position_embeddings"],
            hidden_act=options["hidden_act"],
            layer_norm_eps=float(options["layer_norm_eps"]),
            end_token=end_token,
            projection_dim=options["projection_dim"] if projected else None,
        )
