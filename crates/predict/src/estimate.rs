//! Estimates the GPU memory of a model that never ran, from its description.
//!
//! MIGM §2.2 names such an estimate for jobs that declare no memory and have no history. It adds up weights, gradients,
//! the optimizer's state, activations, the cache of a transformer's keys and values, workspaces and the CUDA context.
//! It is the starting point of the sizing ladder, which corrects it.

pub mod config;
pub mod onnx;

use serde::Serialize;
use tessera_model::Bytes;

use crate::number::{float, whole};

const MIB: f64 = 1_048_576.0;

/// By how much activations exceed the formula: allocators round, and outputs of operations live
/// until the next one has run. Fitted on the first two of nine measurements of one model
/// (`tests/estimate.rs`).
const ALLOCATION: f64 = 1.18;

/// Workspaces of cuBLAS and cuDNN in MiB. Fitted on the same.
const WORKSPACE_MIB: f64 = 135.0;

/// The size of activations in mixed precision relative to 32 bits: most are half as large, and
/// those of softmax, norms and losses are as large. Fitted on one measurement.
const MIXED_ACTIVATIONS: f64 = 0.80;

/// The CUDA context with its kernels, loaded as they are used, in MiB (CUDA 11.7 and newer). Older versions load all of
/// a library's: 1,343 MiB on a V100 (source: `tests/estimate/measured.csv`).
pub const CONTEXT_MIB: u64 = 600;

/// The relative error of activations, on each side.
const ACTIVATIONS_OFF: f64 = 0.25;

/// The relative error of everything else.
const OTHERS_OFF: f64 = 0.04;

/// The properties of a model that determine its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelShape {
    /// The number of weights.
    pub parameters: u64,
    /// The number of layers, encoder and decoder together.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of keys and values; fewer than `heads` in models with grouped queries.
    pub kv_heads: u64,
    /// The width of each attention head.
    pub head_width: u64,
    /// Tokens of the vocabulary.
    pub vocabulary: u64,
    /// Width of the feed-forward part.
    pub inner: u64,
    /// Whether the feed-forward part has a gate, so that one more of its results exists at a time.
    pub is_gated: bool,
    /// The number of weights that quantisation leaves in 16 bits: those of the vocabulary.
    pub embeddings: u64,
    /// Whether training computes a value for each token of the vocabulary, as models of language do.
    pub has_logits: bool,
    /// The number of values in all intermediate results of one sample, if the model's file has them
    /// (ONNX).
    pub intermediates: u64,
}

/// The precision in which a model is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// 32 bits.
    Float32,
    /// Weights in 32 bits with a copy in 16, as automatic mixed precision has them.
    Mixed,
    /// 16 bits: float16 or bfloat16.
    Half,
    /// 8 bits, quantised.
    Int8,
    /// 4 bits, quantised.
    Int4,
}

impl NumberFormat {
    /// All of them, with their names in requests.
    pub const WORDS: [(&str, Self); 7] = [
        ("float32", Self::Float32),
        ("mixed", Self::Mixed),
        ("float16", Self::Half),
        ("bfloat16", Self::Half),
        ("half", Self::Half),
        ("int8", Self::Int8),
        ("int4", Self::Int4),
    ];

    const fn weight_bytes(self) -> f64 {
        match self {
            Self::Float32 => 4.0,
            Self::Mixed => 6.0,
            Self::Half => 2.0,
            // Scales and outliers: one sixteenth more, or a number of 32 bits for each 64 values.
            Self::Int8 => 1.062_5,
            Self::Int4 => 0.562_5,
        }
    }

    const fn activations(self) -> f64 {
        match self {
            Self::Float32 => 1.0,
            Self::Mixed => MIXED_ACTIVATIONS,
            Self::Half | Self::Int8 | Self::Int4 => 0.5,
        }
    }

    const fn value_bytes(self) -> f64 {
        match self {
            Self::Float32 => 4.0,
            Self::Mixed | Self::Half | Self::Int8 | Self::Int4 => 2.0,
        }
    }
}

/// The optimizer that trains a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerKind {
    /// Nothing: inference.
    None,
    /// Gradients only.
    Sgd,
    /// One state for each weight.
    Momentum,
    /// Two states for each weight, in 32 bits.
    AdamW,
    /// Two states for each weight, in 8 bits.
    Adam8bit,
    /// Rows and columns of states.
    Adafactor,
}

impl OptimizerKind {
    /// All of them, with their names in requests.
    pub const WORDS: [(&str, Self); 6] = [
        ("none", Self::None),
        ("sgd", Self::Sgd),
        ("momentum", Self::Momentum),
        ("adamw", Self::AdamW),
        ("adam8bit", Self::Adam8bit),
        ("adafactor", Self::Adafactor),
    ];

    const fn state_bytes(self) -> f64 {
        match self {
            Self::None | Self::Sgd => 0.0,
            Self::Momentum => 4.0,
            Self::AdamW => 8.0,
            Self::Adam8bit => 2.0,
            Self::Adafactor => 0.02,
        }
    }
}

/// How a model is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelRun {
    /// Samples in one batch.
    pub batch: u64,
    /// Tokens of a sample.
    pub sequence: u64,
    /// Its precision.
    pub format: NumberFormat,
    /// What is kept for each weight between iterations.
    pub optimizer: OptimizerKind,
    /// Whether activations are computed again in the backward pass.
    pub checkpointing: bool,
    /// Whether the scores of attention are kept for the backward pass. Fused kernels, the default of today's libraries,
    /// compute them again.
    pub keeps_scores: bool,
    /// The CUDA context, in MiB.
    pub context_mib: u64,
}

/// The memory of a run by purpose, with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RunMemory {
    /// Weights, with their copy in mixed precision.
    pub weights: Bytes,
    /// One value for each weight that is trained.
    pub gradients: Bytes,
    /// The optimizer's state.
    pub optimizer: Bytes,
    /// Activations; in inference those of one layer.
    pub activations: Bytes,
    /// Keys and values of all layers, in inference.
    pub cache: Bytes,
    /// Workspaces of libraries.
    pub workspace: Bytes,
    /// The CUDA context.
    pub context: Bytes,
    /// All of these.
    pub total: Bytes,
    /// The lower end, if the formulas apply.
    pub low: Bytes,
    /// The upper end.
    pub high: Bytes,
}

/// Estimates the memory of a run.
///
/// # Source
///
/// Activations of a transformer's layer: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
/// Models", 2022: `s b h (34 + 5 a s / h)` bytes in 16 bits.
pub fn estimate(shape: &ModelShape, run: &ModelRun) -> RunMemory {
    let parameters = float(shape.parameters);
    let is_trained = run.optimizer != OptimizerKind::None;
    let vocabulary = match run.format {
        NumberFormat::Int8 | NumberFormat::Int4 => float(shape.embeddings),
        NumberFormat::Float32 | NumberFormat::Mixed | NumberFormat::Half => 0.0,
    };
    let half = NumberFormat::Half.weight_bytes();
    let weights = (parameters - vocabulary) * run.format.weight_bytes() + vocabulary * half;
    let gradient_bytes = if run.format == NumberFormat::Half { 2.0 } else { 4.0 };
    let gradients = if is_trained { parameters * gradient_bytes } else { 0.0 };
    let optimizer = parameters * run.optimizer.state_bytes();
    let activations = activations(shape, run, is_trained);
    let tokens = float(run.batch) * float(run.sequence);
    let of_token = 2.0 * float(shape.layers) * float(shape.kv_heads) * float(shape.head_width);
    let cache = if is_trained { 0.0 } else { tokens * of_token * run.format.value_bytes() };
    let (workspace, context) = (WORKSPACE_MIB * MIB, float(run.context_mib) * MIB);
    let others = weights + gradients + optimizer + cache + workspace + context;
    let bytes = |value: f64| Bytes::new(whole(value));
    RunMemory {
        weights: bytes(weights),
        gradients: bytes(gradients),
        optimizer: bytes(optimizer),
        activations: bytes(activations),
        cache: bytes(cache),
        workspace: bytes(workspace),
        context: bytes(context),
        total: bytes(others + activations),
        low: bytes(others * (1.0 - OTHERS_OFF) + activations * (1.0 - ACTIVATIONS_OFF)),
        high: bytes(others * (1.0 + OTHERS_OFF) + activations * (1.0 + ACTIVATIONS_OFF)),
    }
}

fn activations(shape: &ModelShape, run: &ModelRun, is_trained: bool) -> f64 {
    let (batch, sequence, hidden) = (float(run.batch), float(run.sequence), float(shape.hidden));
    if shape.layers == 0 {
        let all = float(shape.intermediates) * batch * 4.0 * run.format.activations();
        return ALLOCATION * all;
    }
    let stream = sequence * batch * hidden;
    let scores = match run.keeps_scores {
        true => float(shape.heads) * sequence * sequence * batch,
        false => 0.0,
    };
    // In 32 bits, this is twice the paper's value for 16.
    let layer = 2.0 * (34.0 * stream + 5.0 * scores);
    let checkpoints = 4.0 * stream * float(shape.layers);
    let kept = match (is_trained, run.checkpointing) {
        (true, false) => layer * float(shape.layers),
        (true, true) => checkpoints + layer,
        // Nothing is kept for a backward pass. So these are the results that exist at the same time in the widest part of a
        // layer: the stream, its normed copy, and those of the feed-forward part. The logits are those of the last token.
        (false, _) => {
            let wide = if shape.is_gated { 3.0 } else { 2.0 };
            let inner = wide * sequence * batch * float(shape.inner);
            4.0 * (2.0 * stream + inner + float(shape.vocabulary) * batch)
        }
    };
    ALLOCATION * kept * run.format.activations() + logits(shape, run, is_trained)
}

/// Returns the bytes of the values for the vocabulary's tokens in training. The values in 32 bits, their logarithms and
/// their gradients exist at the same time. With 16 bits the original values do, too.
fn logits(shape: &ModelShape, run: &ModelRun, is_trained: bool) -> f64 {
    if !is_trained || !shape.has_logits {
        return 0.0;
    }
    let bytes = if run.format == NumberFormat::Float32 { 12.0 } else { 14.0 };
    bytes * float(run.batch) * float(run.sequence) * float(shape.vocabulary)
}
