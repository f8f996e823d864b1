import pytest

from builder.published import choose_weights, family_of, needed_files, tokenizer_files
from worker.errors import CheckpointError
from worker.families import FAMILIES

SD = FAMILIES["stable-diffusion"]
PARTS = {part.name: part for part in SD.parts}
UNET = PARTS["unet"]
STEM = "diffusion_pytorch_model"


def shards(form: str, count: int = 2) -> list[str]:
    return [form.format(f"{i + 1:05}-of-{count:05}") for i in range(count)]


SINGLE = {v: [f"{STEM}{v and '.' + v}.safetensors"] for v in ("", "fp16", "bf16", "ema", "non_ema")}
SHARDED = {
    "plain": shards(STEM + "-{}.safetensors"),
    "fp16 new": shards(STEM + ".fp16-{}.safetensors"),
    "fp16 old": shards(STEM + "-{}.fp16.safetensors"),
    "bf16 new": shards(STEM + ".bf16-{}.safetensors"),
}
# The stated order, first to last.
ORDER = [
    (SINGLE[""], ""),
    (SHARDED["plain"], ""),
    (SINGLE["fp16"], "fp16"),
    (SHARDED["fp16 new"], "fp16"),
    (SHARDED["fp16 old"], "fp16"),
    (SINGLE["bf16"], "bf16"),
    (SHARDED["bf16 new"], "bf16"),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_order_of_the_search(first):
    later = [name for files, _ in ORDER[first:] for name in files]
    others = [*SINGLE["ema"], *SINGLE["non_ema"], "diffusion_flax_model.msgpack", f"{STEM}.bin", "config.json"]
    others += [f"{STEM}.safetensors.index.json", "model.safetensors", "model.onnx"]
    weights = choose_weights(UNET, [*reversed(later), *others])
    assert (list(weights.files), weights.variant) == (ORDER[first][0], ORDER[first][1])


def test_the_stem_of_a_text_encoder():
    weights = choose_weights(PARTS["text_encoder"], ["model.fp16.safetensors", SINGLE[""][0], "pytorch_model.bin"])
    assert weights.files == ("model.fp16.safetensors",)


def test_what_was_looked_for_is_listed_in_order():
    with pytest.raises(CheckpointError, match=r"unet: no weights; looked for ") as caught:
        choose_weights(UNET, [*SINGLE["ema"], "config.json"])
    text = str(caught.value)
    places = [text.index(files[0].replace("00001-of-00002", "0000i-of-0000N")) for files, _ in ORDER]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "pickles", [[f"{STEM}.bin"], shards(STEM + "-{}.bin"), [f"{STEM}.fp16.bin"], ["model.ckpt"], ["model.pt"]]
)
def test_pickles_are_refused(pickles):
    with pytest.raises(CheckpointError, match="safetensors are required, no pickle is opened"):
        choose_weights(UNET, pickles)


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_missing_shard_is_named(absent):
    names = shards(STEM + "-{}.safetensors", 3)
    del names[absent]
    with pytest.raises(CheckpointError, match=rf"of the 3 shards .* the numbers \[{absent + 1}\] are missing"):
        choose_weights(UNET, [*names, *SINGLE["fp16"]])


def index(**changes):
    return {**SD.tiny["sd1"]["model_index"], **changes}


def test_the_family_and_what_it_does_not_use():
    family, unused = family_of(
        index(safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"], image_encoder=["transformers", "X"])
    )
    assert family is SD
    assert sorted(unused) == ["image_encoder", "safety_checker"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_class_name": "HunyuanDiTPipeline"}, "HunyuanDiTPipeline is not served"),
        ({"_class_name": None}, "None is not served"),
        ({"text_encoder": [None, None]}, "text_encoder null: not supported: refiner"),
        ({"unet": None}, "unet is absent"),
        ({"vae": ["diffusers", "AutoencoderTiny"]}, "vae is AutoencoderTiny, AutoencoderKL is expected"),
        ({"tokenizer": [None, None]}, "tokenizer is absent"),
        ({"scheduler": [None, None]}, "scheduler is absent"),
        ({"controlnet": ["diffusers", "ControlNetModel"]}, "controlnet is not handled"),
    ],
)
def test_an_index_that_is_not_served(changes, message):
    with pytest.raises(CheckpointError, match=message):
        family_of(index(**changes))


def test_the_refiner_by_its_index():
    refiner = dict(FAMILIES["stable-diffusion-xl"].tiny["sdxl"]["model_index"])
    refiner |= {
        "_class_name": "StableDiffusionXLImg2ImgPipeline",
        "text_encoder": [None, None],
        "tokenizer": [None, None],
        "requires_aesthetics_score": True,
    }
    with pytest.raises(CheckpointError, match="not supported: refiner"):
        family_of(refiner)


def test_only_needed_files_are_chosen():
    kept = [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "README.md",
        *(f"tokenizer/{name}" for name in ("merges.txt", "special_tokens_map.json", "vocab.json")),
        *("text_encoder/config.json", "text_encoder/model.safetensors"),
        *(f"{part}/{name}" for part in ("unet", "vae") for name in ("config.json", SINGLE[""][0])),
    ]
    others = [
        *("v1-5.ckpt", "v1-5.safetensors", "picture.png", ".gitattributes"),
        *(
            f"unet/{name}"
            for name in (*SINGLE["fp16"], *SINGLE["non_ema"], f"{STEM}.bin", "diffusion_flax_model.msgpack")
        ),
        *("text_encoder/pytorch_model.bin", "text_encoder/model.onnx", "safety_checker/model.safetensors"),
        *("feature_extractor/preprocessor_config.json", "unet/onnx/model.json", "unet_2/config.json"),
    ]
    assert sorted(needed_files(SD, [*others, *kept])) == sorted(kept)
    with pytest.raises(CheckpointError, match=r"missing from the checkpoint: unet/config.json"):
        needed_files(SD, [*others, *(name for name in kept if name != "unet/config.json")])


@pytest.mark.parametrize(
    ("kind", "names", "kept"),
    [
        ("clip_text", ["vocab.json", "merges.txt", "tokenizer.json"], ["vocab.json", "merges.txt"]),
        ("clip_text", ["tokenizer.json", "tokenizer_config.json", "x"], ["tokenizer.json", "tokenizer_config.json"]),
        (
            "clip_text",
            ["vocab.json", "tokenizer.json", "special_tokens_map.json"],
            ["tokenizer.json", "special_tokens_map.json"],
        ),
        (
            "t5_text",
            ["spiece.model", "tokenizer.json", "tokenizer_config.json"],
            ["tokenizer.json", "tokenizer_config.json"],
        ),
        ("t5_text", ["spiece.model", "added_tokens.json"], ["spiece.model"]),
    ],
)
def test_the_files_of_a_tokeniser(kind, names, kept):
    assert tokenizer_files(kind, names) == kept


@pytest.mark.parametrize("names", [["vocab.json"], ["merges.txt", "tokenizer_config.json"], []])
def test_a_tokeniser_without_its_vocabulary(names):
    with pytest.raises(CheckpointError, match=r"neither vocab.json and merges.txt nor tokenizer.json"):
        tokenizer_files("clip_text", names)
    with pytest.raises(CheckpointError, match=r"neither tokenizer.json nor spiece.model"):
        tokenizer_files("t5_text", names)
