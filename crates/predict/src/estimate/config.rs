//! Reads the `config.json` of the transformers library.

use serde_json::Value;

use super::ModelShape;

/// Why a file describes no model.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It lacks a number.
    #[error("{key} is missing: expected the config.json of a transformer, which has it")]
    Missing {
        /// The key's usual name.
        key: &'static str,
    },
}

/// The names under which libraries keep a number, the usual one first.
const HIDDEN: [&str; 4] = ["hidden_size", "n_embd", "d_model", "dim"];
const LAYERS: [&str; 5] =
    ["num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"];
const HEADS: [&str; 5] =
    ["num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"];
const INNER: [&str; 6] =
    ["intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "encoder_ffn_dim"];
const VOCABULARY: [&str; 1] = ["vocab_size"];
const POSITIONS: [&str; 3] = ["max_position_embeddings", "n_positions", "n_ctx"];

/// Families whose feed-forward part has a gate, so three matrices and not two.
const GATED: [&str; 12] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "cohere",
    "olmo",
    "stablelm",
];

/// Families that learn a vector for each position.
const POSITIONED: [&str; 9] = [
    "bert",
    "roberta",
    "gpt2",
    "opt",
    "distilbert",
    "electra",
    "gpt_bigcode",
    "xlm-roberta",
    "whisper",
];

/// Families that are trained to classify, and compute no values for the vocabulary then.
const ENCODERS: [&str; 10] = [
    "albert",
    "bert",
    "camembert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "mpnet",
    "roberta",
    "xlm-roberta",
];

/// Reads the shape of a transformer.
///
/// # Errors
///
/// [`ConfigError`]: name another file.
pub fn read(text: &str) -> Result<ModelShape, ConfigError> {
    let all: Value = serde_json::from_str(text)?;
    // Models for images and text have their language model's numbers in a separate object.
    let config = all.get("text_config").filter(|inner| inner.is_object()).unwrap_or(&all);
    let number = |keys: &[&str]| keys.iter().find_map(|key| config.get(key)?.as_u64());
    let needed = |keys: &'static [&'static str]| {
        number(keys).ok_or(ConfigError::Missing { key: keys.first().copied().unwrap_or("") })
    };
    let hidden = needed(&HIDDEN)?;
    let layers = needed(&LAYERS)?;
    let heads = needed(&HEADS)?.max(1);
    let vocabulary = needed(&VOCABULARY)?;
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or("");
    let is_multi_query = config.get("multi_query").and_then(Value::as_bool) == Some(true);
    let kv_heads =
        if is_multi_query { 1 } else { number(&["num_key_value_heads"]).unwrap_or(heads) };
    let head_width = number(&["head_dim", "d_kv"]).unwrap_or(hidden / heads);
    let inner = number(&INNER).unwrap_or(4 * hidden);
    let decoder = number(&["num_decoder_layers", "decoder_layers"])
        .or_else(|| (kind == "t5").then_some(layers));
    let experts = number(&["num_local_experts", "num_experts"]).unwrap_or(1).max(1);
    let activation = config.get("feed_forward_proj").and_then(Value::as_str).unwrap_or("");
    let matrices = if GATED.contains(&kind) || activation.starts_with("gated") { 3 } else { 2 };
    let attention = hidden * head_width * (2 * heads + 2 * kv_heads);
    let feed_forward = experts * matrices * hidden * inner;
    let small = if matrices == 3 { 2 * hidden } else { 9 * hidden + inner };
    let layer = attention + feed_forward + small;
    // A decoder's layer of an encoder-decoder has a second attention.
    let decoder_layers = decoder.map_or(0, |layers| layers * (layer + attention));
    let tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(matrices == 2);
    let embeddings = vocabulary * hidden * if tied { 1 } else { 2 };
    let positions = match POSITIONED.contains(&kind) {
        true => number(&POSITIONS).unwrap_or(0) * hidden,
        false => 0,
    };
    Ok(ModelShape {
        parameters: layers * layer + decoder_layers + embeddings + positions,
        layers: layers + decoder.unwrap_or(0),
        hidden,
        heads,
        kv_heads,
        head_width,
        vocabulary,
        inner,
        is_gated: matrices == 3,
        embeddings,
        has_logits: !ENCODERS.contains(&kind),
        intermediates: 0,
    })
}
