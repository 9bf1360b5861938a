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

/// By how much the activations of training exceed the formula: allocators round and fragment. Measured for `distilbert`
/// and `smollm2` on an H200: 8 to 11 % (`tests/estimate/main.rs`).
const FRAGMENTATION: f64 = 1.10;

/// The same for inference and for ONNX files, whose outputs of operations live until the next one has run. Fitted on
/// two measurements of one model.
const ALLOCATION: f64 = 1.18;

/// Workspaces of cuBLAS and cuDNN in MiB.
const WORKSPACE_MIB: f64 = 135.0;

/// The size of an ONNX file's activations in mixed precision relative to 32 bits: most are half as large, and those of
/// softmax, norms and losses are as large. Fitted on one measurement.
const MIXED_ACTIVATIONS: f64 = 0.80;

/// Bytes of the logits, their logarithms and gradients that exist at the same time, for each token of the vocabulary.
const LOGIT_BYTES: f64 = 12.0;

/// The CUDA context with its kernels, loaded as they are used, in MiB (CUDA 11.7 and newer). PyTorch 2.11 with CUDA 13 had
/// 678 to 716 MiB on an H200. Older versions load all of a library's: 1,343 MiB on a V100 (source:
/// `tests/estimate/measured.csv`).
pub const CONTEXT_MIB: u64 = 700;

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

    /// The size of activations relative to 32 bits, in inference and for ONNX files.
    const fn relative_size(self) -> f64 {
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

    /// Bytes of a weight while the optimizer changes it: the copy in 16 bits exists in the forward and backward pass only.
    const fn updated_bytes(self) -> f64 {
        match self {
            Self::Mixed => 4.0,
            Self::Float32 | Self::Half | Self::Int8 | Self::Int4 => self.weight_bytes(),
        }
    }

    /// Bytes that training keeps of a token in a layer, for each value of the residual stream: everything but the
    /// feed-forward part and the scores. In mixed precision norms and the stream have 32 bits. Fitted on `distilbert` and
    /// `smollm2`, whose attention and norms differ, on an H200: 43 and 42.6; 29.8 and 33.6; 22.5 and 23.1.
    const fn stream_bytes(self) -> f64 {
        match self {
            Self::Float32 => 43.0,
            Self::Mixed => 33.5,
            Self::Half | Self::Int8 | Self::Int4 => 23.0,
        }
    }

    /// Bytes that training keeps of a score of attention without fused attention: the score, its softmax, the dropped ones
    /// and their mask.
    const fn score_bytes(self) -> f64 {
        match self {
            Self::Float32 => 10.0,
            Self::Mixed => 9.0,
            Self::Half | Self::Int8 | Self::Int4 => 5.0,
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

    /// Bytes of state for a weight whose own values have `weight` bytes: states have the format of their weights.
    const fn state_bytes(self, weight: f64) -> f64 {
        match self {
            Self::None | Self::Sgd => 0.0,
            Self::Momentum => weight,
            Self::AdamW => 2.0 * weight,
            Self::Adam8bit => 2.0,
            Self::Adafactor => 0.005 * weight,
        }
    }

    /// Bytes of temporary values for each weight during a step that changes all weights together.
    const fn step_bytes(self, weight: f64) -> f64 {
        match self {
            Self::None | Self::Sgd | Self::Momentum | Self::Adam8bit => 0.0,
            Self::AdamW | Self::Adafactor => weight,
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
    /// Whether gradients exist during the forward pass as well: with gradient accumulation, and in PyTorch before 2.0.
    pub keeps_gradients: bool,
    /// Whether the optimizer changes all weights together, as PyTorch does from 2.0 on: then temporary values of all of
    /// them exist at the same time.
    pub steps_together: bool,
    /// The CUDA context, in MiB.
    pub context_mib: u64,
}

/// The memory of a run by purpose, with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RunMemory {
    /// Weights, with their copy in mixed precision if that exists when most memory is needed.
    pub weights: Bytes,
    /// One value for each weight that is trained. By default they don't exist during the forward pass, and need nothing if
    /// that needs most.
    pub gradients: Bytes,
    /// The optimizer's state.
    pub optimizer: Bytes,
    /// Activations; in inference those of one layer. If the optimizer's step needs more, its temporary values.
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
/// Training needs most at the end of the forward pass, when all activations exist, or during the optimizer's step, when
/// all gradients do.
pub fn estimate(shape: &ModelShape, run: &ModelRun) -> RunMemory {
    let parameters = float(shape.parameters);
    let is_trained = run.optimizer != OptimizerKind::None;
    let vocabulary = match run.format {
        NumberFormat::Int8 | NumberFormat::Int4 => float(shape.embeddings),
        NumberFormat::Float32 | NumberFormat::Mixed | NumberFormat::Half => 0.0,
    };
    let half = NumberFormat::Half.weight_bytes();
    let weights_of = |bytes: f64| (parameters - vocabulary) * bytes + vocabulary * half;
    let updated = run.format.updated_bytes();
    let all_gradients = if is_trained { parameters * updated } else { 0.0 };
    let kept_gradients = if run.keeps_gradients { all_gradients } else { 0.0 };
    let pass = (weights_of(run.format.weight_bytes()), kept_gradients, activations(shape, run));
    let temporary = if run.steps_together { run.optimizer.step_bytes(updated) } else { 0.0 };
    let step = (weights_of(updated), all_gradients, parameters * temporary);
    let sum = |(weights, gradients, values): (f64, f64, f64)| weights + gradients + values;
    let (weights, gradients, activations) = if sum(step) > sum(pass) { step } else { pass };
    let optimizer = parameters * run.optimizer.state_bytes(updated);
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

fn activations(shape: &ModelShape, run: &ModelRun) -> f64 {
    let (batch, sequence, hidden) = (float(run.batch), float(run.sequence), float(shape.hidden));
    if shape.layers == 0 {
        let values = float(shape.intermediates) * batch;
        return ALLOCATION * values * 4.0 * run.format.relative_size();
    }
    let (tokens, inner) = (sequence * batch, float(shape.inner));
    if run.optimizer == OptimizerKind::None {
        // Nothing is kept for a backward pass. So these are the results that exist at the same time in the widest part of a
        // layer: the stream, its normed copy, and those of the feed-forward part. The logits are those of the last token.
        let wide = if shape.is_gated { 3.0 } else { 2.0 };
        let values = tokens * (2.0 * hidden + wide * inner) + float(shape.vocabulary) * batch;
        return ALLOCATION * values * 4.0 * run.format.relative_size();
    }
    let value_bytes = run.format.value_bytes();
    let results = if shape.is_gated { 4.0 } else { 2.0 };
    let layer = tokens * (run.format.stream_bytes() * hidden + value_bytes * results * inner)
        + float(shape.heads) * sequence * sequence * batch * score_bytes(shape, run);
    let layers = float(shape.layers);
    let kept = match run.checkpointing {
        false => layer * layers,
        // The stream between layers has 32 bits in mixed precision.
        true => layer + tokens * hidden * layers * run.format.updated_bytes(),
    };
    FRAGMENTATION * (kept + logits(shape, run))
}

/// Returns the bytes that are kept of each score of attention.
const fn score_bytes(shape: &ModelShape, run: &ModelRun) -> f64 {
    match run.format {
        _ if run.keeps_scores => run.format.score_bytes(),
        // Fused attention has no kernel for groups of heads in 32 bits. PyTorch 2.11 keeps each probability there.
        NumberFormat::Float32 if shape.kv_heads < shape.heads => 4.0,
        _ => 0.0,
    }
}

/// Returns the bytes of the values for the vocabulary's tokens in training.
fn logits(shape: &ModelShape, run: &ModelRun) -> f64 {
    match shape.has_logits {
        true => LOGIT_BYTES * float(run.batch) * float(run.sequence) * float(shape.vocabulary),
        false => 0.0,
    }
}
