//! The estimator against published measurements, and against published numbers of parameters.

use tessera_predict::estimate::config::read;
use tessera_predict::estimate::{ModelRun, ModelShape, NumberFormat, OptimizerKind, estimate};

/// The published measurements; `fitted` names those from which a constant was taken.
const MEASURED: &str = include_str!("measured.csv");
const BERT: &str = include_str!("bert-large-uncased.json");
const MIB: f64 = 1_048_576.0;

fn word<T: Copy>(words: &[(&str, T)], word: &str) -> T {
    words.iter().find(|(known, _)| *known == word).unwrap().1
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a GPU are below 2^53")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

/// Returns the error of each estimate in percent, and whether a constant was fitted on it.
fn errors() -> Vec<(f64, bool, bool)> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let [model, batch, sequence, format, optimizer, checkpointing, context, measured, fitted] =
            cells[..9]
        else {
            panic!("not a row: {line}")
        };
        assert_eq!(model, "bert-large-uncased");
        let run = ModelRun {
            batch: batch.parse().unwrap(),
            sequence: sequence.parse().unwrap(),
            format: word(&NumberFormat::WORDS, format),
            optimizer: word(&OptimizerKind::WORDS, optimizer),
            checkpointing: checkpointing == "yes",
            // transformers 4.27 has no fused attention, and PyTorch before 2.0 set gradients to zero
            // and stepped weight by weight.
            keeps_scores: true,
            keeps_gradients: true,
            steps_together: false,
            context_mib: context.parse().unwrap(),
        };
        let memory = estimate(&read(BERT).unwrap(), &run);
        let measured: f64 = measured.parse().unwrap();
        let off = 100.0 * (mib(memory.total.get()) / measured - 1.0);
        println!("{line}: {off:+.1} %");
        let is_inside = mib(memory.low.get()) <= measured && measured <= mib(memory.high.get());
        (off, fitted == "yes", is_inside)
    };
    MEASURED.lines().skip(1).map(row).collect()
}

#[test]
fn estimates_are_close_to_the_published_measurements() {
    let all = errors();
    let mut held_out: Vec<f64> =
        all.iter().filter(|(_, fitted, _)| !fitted).map(|(off, ..)| off.abs()).collect();
    held_out.sort_by(f64::total_cmp);
    let median = held_out[held_out.len() / 2];

    assert!(median <= 5.0, "{held_out:?}");
    assert!(all.iter().all(|(off, ..)| *off > -5.0), "under by more than 5 %: {all:?}");
    assert!(all.iter().all(|(.., is_inside)| *is_inside), "outside of the range: {all:?}");
}

/// What Qwen's pages state of generating 2,048 tokens with transformers on one GPU, in MiB of PyTorch's allocator.
///
/// # Sources
///
/// Apache-2.0, facts only. Qwen2.5: docs/source/benchmark/speed_benchmark.rst of github.com/QwenLM/Qwen2.5 at 010c37c, A100
/// 80 GB (GB there are GiB, by the script; rows of GPTQ, as those of AWQ are nearly the same). Qwen3:
/// docs/source/getting_started/speed_benchmark.md of the same repository at 77fb0c1, H20 (MB there are MiB). `seen`: the
/// formulas were compared with the page before they were final; the other page is held out.
const MEASURED_INFERENCE: &str = include_str!("measured-inference.csv");
const QWEN: &str = include_str!("qwen-configs.json");

/// Returns the errors of inference in percent: of the page that was seen before, or of the one that is held out.
fn inference_errors(of_seen: bool) -> Vec<f64> {
    let configs: serde_json::Value = serde_json::from_str(QWEN).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let [model, input, generated, format, measured, seen, _] = cells[..] else {
            panic!("not a row: {line}")
        };
        let number = |text: &str| text.parse::<u64>().unwrap();
        let run = ModelRun {
            batch: 1,
            sequence: number(input) + number(generated),
            format: word(&NumberFormat::WORDS, format),
            optimizer: OptimizerKind::None,
            checkpointing: false,
            keeps_scores: false,
            keeps_gradients: false,
            steps_together: true,
            // The allocator does not count it.
            context_mib: 0,
        };
        let memory = estimate(&read(&configs[model].to_string()).unwrap(), &run);
        let off = 100.0 * (mib(memory.total.get()) / measured.parse::<f64>().unwrap() - 1.0);
        println!("{line}: {off:+.1} %");
        ((seen == "yes") == of_seen).then_some(off)
    };
    MEASURED_INFERENCE.lines().skip(1).filter_map(row).collect()
}

#[test]
fn inference_is_estimated_within_15_percent_and_hardly_ever_too_low() {
    for (of_seen, rows) in [(true, 75), (false, 48)] {
        let all = inference_errors(of_seen);
        assert_eq!(all.len(), rows);
        let mut off: Vec<f64> = all.iter().map(|off| off.abs()).collect();
        off.sort_by(f64::total_cmp);
        let median = off[off.len() / 2];
        let low = all.iter().filter(|off| **off < -5.0).count();
        println!("median error {median:.1} %, {low} of {rows} too low by more than 5 %");
        assert!(median <= 15.0, "{median}");
        assert!(low * 20 <= rows, "{low} of {rows} are too low");
    }
}

/// What training took on an H200 with PyTorch 2.11 and transformers 5.17: part 8 of the GPU pack measured it. The file also
/// has inference, of models that were made on the GPU: that needs the vocabulary's weights twice, and is not compared.
const MEASURED_HERE: &str = include_str!("measured-h200.csv");
const CONFIGS_HERE: &str = include_str!("h200-configs.json");

/// A measured training run: the errors in percent against what the program needed, and against what its allocator kept.
struct TrainingError {
    of_needed: f64,
    of_reserved: f64,
    is_held_out: bool,
    is_inside: bool,
}

fn training_errors() -> Vec<TrainingError> {
    let configs: serde_json::Value = serde_json::from_str(CONFIGS_HERE).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let [model, batch, tokens, format, optimizer, checkpointing, parameters, rest @ ..] =
            &cells[..]
        else {
            panic!("not a row: {line}")
        };
        if *optimizer == "none" {
            return None;
        }
        let [allocated, reserved, context] =
            [0, 1, 2].map(|at: usize| rest[at].parse::<u64>().unwrap());
        let run = ModelRun {
            batch: batch.parse().unwrap(),
            sequence: tokens.parse().unwrap(),
            format: word(&NumberFormat::WORDS, format),
            optimizer: word(&OptimizerKind::WORDS, optimizer),
            checkpointing: *checkpointing == "yes",
            keeps_scores: false,
            keeps_gradients: false,
            steps_together: true,
            context_mib: context,
        };
        let shape = read(&configs[*model].to_string()).unwrap();
        let counted: f64 = parameters.parse().unwrap();
        assert!((mib(shape.parameters) * MIB / counted - 1.0).abs() < 0.02, "{line}");
        let memory = estimate(&shape, &run);
        let needed = mib((allocated + context) << 20);
        let off = |measured: f64| 100.0 * (mib(memory.total.get()) / measured - 1.0);
        let error = TrainingError {
            of_needed: off(needed),
            of_reserved: off(mib((reserved + context) << 20)),
            is_held_out: model.starts_with("llama") || model.starts_with("qwen"),
            is_inside: mib(memory.low.get()) <= needed && needed <= mib(memory.high.get()),
        };
        println!("{line}: {:+.1} %, {:+.1} % of reserved", error.of_needed, error.of_reserved);
        Some(error)
    };
    MEASURED_HERE.lines().filter(|line| !line.starts_with('#')).skip(1).filter_map(row).collect()
}

#[test]
fn training_is_estimated_within_15_percent_and_never_too_low() {
    let all = training_errors();
    assert_eq!(all.len(), 27);
    for is_held_out in [false, true] {
        let rows: Vec<_> = all.iter().filter(|row| row.is_held_out == is_held_out).collect();
        let median = |figure: fn(&TrainingError) -> f64| {
            let mut off: Vec<f64> = rows.iter().map(|row| figure(row).abs()).collect();
            off.sort_by(f64::total_cmp);
            off[off.len() / 2]
        };
        let (needed, reserved) = (median(|row| row.of_needed), median(|row| row.of_reserved));
        println!("held out {is_held_out}: median {needed:.1} %, of reserved {reserved:.1} %");
        assert!(needed <= 15.0 && reserved <= 15.0, "{needed} {reserved}");
        assert!(rows.iter().all(|row| row.of_needed > -5.0 && row.is_inside));
    }
}

#[test]
fn gradients_count_where_they_exist_beside_activations() {
    let shape = read(PARAMETERS[1].1).unwrap();
    let run = ModelRun {
        batch: 32,
        sequence: 1_024,
        format: NumberFormat::Float32,
        optimizer: OptimizerKind::AdamW,
        checkpointing: false,
        keeps_scores: false,
        keeps_gradients: false,
        steps_together: true,
        context_mib: 0,
    };
    let large = estimate(&shape, &run);
    let accumulated = estimate(&shape, &ModelRun { keeps_gradients: true, ..run });
    let small = estimate(&shape, &ModelRun { batch: 1, sequence: 8, ..run });

    assert_eq!(large.gradients.get(), 0);
    assert_eq!(accumulated.gradients.get(), 4 * shape.parameters);
    // The optimizer's step: weights, gradients, two states, and one temporary value of each.
    assert_eq!(small.gradients.get() + small.activations.get(), 8 * shape.parameters);
}

#[test]
fn what_quantisation_leaves_alone_and_logits_are_counted() {
    let shape = read(PARAMETERS[2].1).unwrap();
    let run = ModelRun {
        batch: 1,
        sequence: 1_024,
        format: NumberFormat::Int4,
        optimizer: OptimizerKind::None,
        checkpointing: true,
        keeps_scores: false,
        keeps_gradients: false,
        steps_together: true,
        context_mib: 0,
    };
    // Two matrices of 32,000 tokens stay in 16 bits.
    let vocabulary = 2 * 2 * 32_000 * 4_096;
    assert!(estimate(&shape, &run).weights.get() > vocabulary + shape.parameters / 2);
    // Without checkpointing, so that the forward pass needs most.
    let run = ModelRun { batch: 16, checkpointing: false, ..run };
    let training = ModelRun { format: NumberFormat::Half, optimizer: OptimizerKind::AdamW, ..run };
    let with = estimate(&shape, &training).activations.get();
    let without = estimate(&ModelShape { has_logits: false, ..shape }, &training).activations.get();
    let logits = 12 * 16 * 1_024 * 32_000 * 11 / 10;
    assert!((with - without).abs_diff(logits) <= 1, "{with} {without}");
    let eager = estimate(&shape, &ModelRun { keeps_scores: true, ..training });
    assert!(eager.activations.get() > with, "{eager:?}");
}

/// Model, its config, and its published number of parameters in millions, by the model's page.
const PARAMETERS: [(&str, &str, f64); 5] = [
    ("bert-large-uncased", BERT, 335.0),
    (
        "gpt2",
        r#"{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
            "n_positions": 1024}"#,
        124.0,
    ),
    (
        "Llama-2-7b",
        r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "intermediate_size": 11008, "vocab_size": 32000, "tie_word_embeddings": false}"#,
        6_738.0,
    ),
    (
        "Qwen2-7B",
        r#"{"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
            "tie_word_embeddings": false}"#,
        7_616.0,
    ),
    (
        "Mixtral-8x7B",
        r#"{"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
            "num_local_experts": 8, "tie_word_embeddings": false}"#,
        46_703.0,
    ),
];

#[test]
fn parameters_are_those_of_the_models_pages() {
    for (name, config, millions) in PARAMETERS {
        let found = mib(read(config).unwrap().parameters) * MIB / 1e6;
        assert!((found / millions - 1.0).abs() < 0.01, "{name}: {found:.0} million");
    }
}

#[test]
fn inference_needs_weights_and_the_cache_of_keys_and_values() {
    let shape = read(PARAMETERS[3].1).unwrap();
    let run = ModelRun {
        batch: 8,
        sequence: 4_096,
        format: NumberFormat::Half,
        optimizer: OptimizerKind::None,
        checkpointing: false,
        keeps_scores: false,
        keeps_gradients: false,
        steps_together: true,
        context_mib: 600,
    };
    let memory = estimate(&shape, &run);
    // 2 x 28 layers x 4 heads x 128 x 2 bytes x 32,768 tokens.
    assert_eq!(memory.cache.get(), 2 * 28 * 4 * 128 * 2 * 32_768);
    assert_eq!(memory.gradients.get() + memory.optimizer.get(), 0);
    let trained = estimate(&shape, &ModelRun { optimizer: OptimizerKind::AdamW, ..run });
    assert!(
        trained.total > memory.total && trained.low < trained.total && trained.total < trained.high
    );
}

#[test]
fn a_file_without_the_numbers_is_refused_by_name() {
    let error = read(r#"{"hidden_size": 4}"#).unwrap_err().to_string();
    assert!(error.contains("num_hidden_layers"), "{error}");
    assert!(read("{").is_err());
    let nothing = estimate(
        &ModelShape::default(),
        &ModelRun {
            batch: 1,
            sequence: 1,
            format: NumberFormat::Float32,
            optimizer: OptimizerKind::None,
            checkpointing: false,
            keeps_scores: false,
            keeps_gradients: false,
            steps_together: true,
            context_mib: 0,
        },
    );
    assert!(nothing.total >= nothing.workspace);
}
