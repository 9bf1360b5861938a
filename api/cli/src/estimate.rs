//! `tessera estimate`: the GPU memory of a model that never ran, from its description.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Serialize};
use tessera_model::Bytes;
use tessera_predict::estimate::{
    CONTEXT_MIB, ModelRun, ModelShape, NumberFormat, OptimizerKind, config, estimate, onnx,
};
use utoipa::ToSchema;

use super::failure::CommandFailure;
use super::session::{fields, print};

/// Largest file that is read. ONNX files whose weights are stored in other files are far smaller.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// Estimates the GPU memory of a model from its description, with a range. It needs no cluster.
#[derive(Args)]
pub struct Estimate {
    /// The config.json of a transformer, or an ONNX file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    run: RunOptions,
}

/// How a model is run.
#[derive(Args, Clone, Debug, PartialEq)]
struct RunOptions {
    /// Samples that are processed at once
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    batch: u64,
    /// Tokens in a sample
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    seq: u64,
    /// Optimizer that trains it: adamw, adam8bit, adafactor, momentum or sgd; none means inference
    #[arg(long, default_value = "none", value_name = "NAME", value_parser = optimizer)]
    optimizer: OptimizerKind,
    /// Format of its numbers: float32, mixed, float16, bfloat16, int8 or int4
    #[arg(long, default_value = "float16", value_name = "NAME", value_parser = format)]
    dtype: NumberFormat,
    /// Recompute activations in the backward pass
    #[arg(long)]
    checkpointing: bool,
    /// The program keeps the scores of attention for the backward pass: it has no fused attention
    #[arg(long)]
    eager_attention: bool,
    /// Gradients are kept during the forward pass: the program accumulates them, or has a PyTorch before 2.0
    #[arg(long)]
    accumulation: bool,
    /// The CUDA context, in MiB; older versions of CUDA need twice as much
    #[arg(long, default_value_t = CONTEXT_MIB, value_name = "MIB", value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    context: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            batch: 1,
            seq: 512,
            optimizer: OptimizerKind::None,
            dtype: NumberFormat::Half,
            checkpointing: false,
            eager_attention: false,
            accumulation: false,
            context: CONTEXT_MIB,
        }
    }
}

/// The estimated GPU memory of a model's run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryEstimateView {
    /// Number of weights.
    pub parameters: u64,
    /// Weights, with their copy in mixed precision if that exists when most memory is needed.
    pub weights_bytes: u64,
    /// Gradients that exist when most memory is needed: by default none in the forward pass.
    pub gradients_bytes: u64,
    /// The optimizer's state.
    pub optimizer_bytes: u64,
    /// Activations; in inference those of one layer. If the optimizer's step needs more, its temporary values.
    pub activations_bytes: u64,
    /// Keys and values of all layers, in inference.
    pub cache_bytes: u64,
    /// Workspaces of libraries.
    pub workspace_bytes: u64,
    /// The CUDA context.
    pub context_bytes: u64,
    /// All of these.
    pub total_bytes: u64,
    /// Lower bound of the range.
    pub low_bytes: u64,
    /// Upper bound of the range.
    pub high_bytes: u64,
}

/// Why nothing can be estimated from a file.
#[derive(Debug, thiserror::Error)]
pub enum BadModelFile {
    /// It can't be read.
    #[error("{}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// It describes no model.
    #[error("{}: {problem}", path.display())]
    NoModel {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// `--memory-from` has an unknown option.
    #[error(
        "--memory-from: {option:?} is unknown; write FILE, followed by options such as \
         ,batch=8,seq=512,optimizer=adamw,dtype=mixed,checkpointing"
    )]
    Option {
        /// The given value.
        option: String,
    },
}

/// `--memory-from FILE`: an estimate that `tessera estimate --json` wrote, or a model with how it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryFrom {
    path: PathBuf,
    run: RunOptions,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one of {}", known.join(", "))]
struct UnknownWord {
    known: Vec<&'static str>,
}

fn word<T: Copy>(words: &[(&'static str, T)], text: &str) -> Result<T, UnknownWord> {
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    found.ok_or_else(|| UnknownWord { known: words.iter().map(|(word, _)| *word).collect() })
}

fn optimizer(text: &str) -> Result<OptimizerKind, UnknownWord> {
    word(&OptimizerKind::WORDS, text)
}

fn format(text: &str) -> Result<NumberFormat, UnknownWord> {
    word(&NumberFormat::WORDS, text)
}

impl Estimate {
    pub fn run(&self, json: bool) -> Result<u8, CommandFailure> {
        let shape = read_shape(&self.file).map_err(CommandFailure::refused)?;
        print(json, &view(&shape, &self.run), draw)?;
        Ok(0)
    }
}

impl RunOptions {
    const fn model_run(&self) -> ModelRun {
        ModelRun {
            batch: self.batch,
            sequence: self.seq,
            format: self.dtype,
            optimizer: self.optimizer,
            checkpointing: self.checkpointing,
            keeps_scores: self.eager_attention,
            keeps_gradients: self.accumulation,
            steps_together: true,
            context_mib: self.context,
        }
    }

    /// Sets one option of `--memory-from`.
    fn set(&mut self, option: &str) -> Result<(), BadModelFile> {
        let bad = || BadModelFile::Option { option: option.to_owned() };
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || value.parse().ok().filter(|number| *number > 0).ok_or_else(bad);
        match name {
            "batch" => self.batch = number()?,
            "seq" => self.seq = number()?,
            "context" => self.context = number()?,
            "optimizer" => self.optimizer = optimizer(value).map_err(|_| bad())?,
            "dtype" => self.dtype = format(value).map_err(|_| bad())?,
            "checkpointing" if value.is_empty() => self.checkpointing = true,
            "eager-attention" if value.is_empty() => self.eager_attention = true,
            "accumulation" if value.is_empty() => self.accumulation = true,
            _ => return Err(bad()),
        }
        Ok(())
    }
}

impl FromStr for MemoryFrom {
    type Err = BadModelFile;

    fn from_str(text: &str) -> Result<Self, BadModelFile> {
        let mut parts = text.split(',');
        let path = PathBuf::from(parts.next().unwrap_or_default());
        let mut run = RunOptions::default();
        parts.try_for_each(|option| run.set(option))?;
        Ok(Self { path, run })
    }
}

impl MemoryFrom {
    /// Returns the memory to request: the upper bound of the range.
    ///
    /// # Errors
    ///
    /// [`BadModelFile`]: the file can't be read, or describes no model.
    pub fn bytes(&self) -> Result<u64, BadModelFile> {
        let text = read_file(&self.path)?;
        if let Ok(known) = serde_json::from_slice::<MemoryEstimateView>(&text) {
            return Ok(known.high_bytes);
        }
        Ok(view(&shape_of(&self.path, &text)?, &self.run).high_bytes)
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, BadModelFile> {
    let unreadable = |cause| BadModelFile::Unreadable { path: path.to_owned(), cause };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > FILE_BYTES_MAX {
        let problem =
            format!("{} is too large for a model without its weights", Bytes::new(length));
        return Err(BadModelFile::NoModel { path: path.to_owned(), problem });
    }
    std::fs::read(path).map_err(unreadable)
}

fn read_shape(path: &Path) -> Result<ModelShape, BadModelFile> {
    shape_of(path, &read_file(path)?)
}

fn shape_of(path: &Path, bytes: &[u8]) -> Result<ModelShape, BadModelFile> {
    let no_model = |problem: String| BadModelFile::NoModel { path: path.to_owned(), problem };
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx")) {
        return onnx::read(bytes).map_err(|problem| no_model(problem.to_string()));
    }
    let text = std::str::from_utf8(bytes).map_err(|problem| no_model(problem.to_string()))?;
    config::read(text).map_err(|problem| no_model(problem.to_string()))
}

fn view(shape: &ModelShape, run: &RunOptions) -> MemoryEstimateView {
    let memory = estimate(shape, &run.model_run());
    MemoryEstimateView {
        parameters: shape.parameters,
        weights_bytes: memory.weights.get(),
        gradients_bytes: memory.gradients.get(),
        optimizer_bytes: memory.optimizer.get(),
        activations_bytes: memory.activations.get(),
        cache_bytes: memory.cache.get(),
        workspace_bytes: memory.workspace.get(),
        context_bytes: memory.context.get(),
        total_bytes: memory.total.get(),
        low_bytes: memory.low.get(),
        high_bytes: memory.high.get(),
    }
}

fn draw(view: &MemoryEstimateView) -> String {
    let amount = |bytes: u64| Some(Bytes::new(bytes).to_string());
    let part = |bytes: u64| amount(bytes).filter(|_| bytes > 0);
    let [low, high] = [view.low_bytes, view.high_bytes].map(Bytes::new);
    fields(vec![
        ("Parameters", Some(view.parameters.to_string())),
        ("Weights", part(view.weights_bytes)),
        ("Gradients", part(view.gradients_bytes)),
        ("Optimizer", part(view.optimizer_bytes)),
        ("Activations", part(view.activations_bytes)),
        ("Keys and values", part(view.cache_bytes)),
        ("Workspace", part(view.workspace_bytes)),
        ("CUDA context", part(view.context_bytes)),
        ("Total", amount(view.total_bytes)),
        ("Range", Some(format!("{low} to {high}"))),
        ("Request", Some(format!("--vram {}M", high.mib() + 1))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPT2: &str = r#"{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
                           "vocab_size": 50257, "n_positions": 1024}"#;

    fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_transformers_memory_is_estimated_with_its_range() {
        let (_folder, path) = file("config.json", GPT2);
        let shape = read_shape(&path).unwrap();
        let training = RunOptions {
            batch: 8,
            optimizer: OptimizerKind::AdamW,
            dtype: NumberFormat::Float32,
            ..RunOptions::default()
        };

        let estimate = view(&shape, &training);

        // GPT-2 has 124 million weights: 4 bytes each, and twice that for the optimizer.
        assert!((120_000_000..130_000_000).contains(&estimate.parameters), "{estimate:?}");
        assert_eq!(estimate.weights_bytes, 4 * estimate.parameters);
        assert_eq!(estimate.optimizer_bytes, 8 * estimate.parameters);
        assert!(estimate.low_bytes < estimate.total_bytes, "{estimate:?}");
        assert!(estimate.total_bytes < estimate.high_bytes, "{estimate:?}");
        let less = view(&shape, &RunOptions { checkpointing: true, ..training });
        // Those of the layers; the logits of 8 x 512 tokens stay.
        let logits = 12 * 8 * 512 * shape.vocabulary;
        let [all, fewer] = [&estimate, &less].map(|view| view.activations_bytes - logits);
        assert!(fewer < all / 3, "{less:?}");
        assert!(draw(&estimate).contains("Request  --vram"), "{}", draw(&estimate));
    }

    #[test]
    fn a_submit_takes_an_estimate_or_a_model_with_how_it_is_run() {
        let (_folder, path) = file("config.json", GPT2);
        let (_other, kept) = {
            let known = view(&read_shape(&path).unwrap(), &RunOptions::default());
            file("estimate.json", &serde_json::to_string(&known).unwrap())
        };
        let bytes = |text: String| text.parse::<MemoryFrom>().unwrap().bytes().unwrap();

        let plain = bytes(path.display().to_string());
        assert_eq!(bytes(kept.display().to_string()), plain);
        let trained = bytes(format!("{},batch=8,optimizer=adamw,dtype=float32", path.display()));
        assert!(trained > 2 * plain, "{trained} {plain}");
    }

    #[test]
    fn an_unknown_model_or_option_is_refused_with_a_clear_message() {
        let (_folder, path) = file("config.json", "{}");

        let refused = read_shape(&path).unwrap_err().to_string();
        assert!(refused.contains("hidden_size is missing"), "{refused}");
        for bad in ["x.json,batch=0", "x.json,batch", "x.json,size=2", "x.json,dtype=int3"] {
            let refused = bad.parse::<MemoryFrom>().unwrap_err().to_string();
            assert!(refused.contains("is unknown; write FILE"), "{bad}: {refused}");
        }
    }
}
