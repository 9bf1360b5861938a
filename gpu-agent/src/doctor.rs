//! The doctor: examines the machine and its driver, and reports what is wrong and how to fix it.
//! [`tessera_agent_core::doctor`] decides what follows from the facts.

mod system;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tessera_frames::cluster::{Finding, FindingLevel, ToController};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::accounts::AccountRules;
use crate::config::AgentConfig;
use crate::isolation;
use crate::messages::NodeInput;
use crate::nvml::checkup::CheckupOutput;
use crate::nvml::client::may_launch_as_root;
use tessera_agent_core::doctor::{DoctorFacts, DriverAnswer, MachineFacts, findings, summary};

/// How long the driver may take: loading it again takes seconds where persistence mode is off.
const DRIVER_WITHIN: Duration = Duration::from_secs(15);

/// What the doctor needs.
#[derive(Clone, Debug)]
pub struct Doctor {
    /// The agent's own program, which also queries the driver.
    pub program: PathBuf,
    /// NVIDIA's management library.
    pub library: PathBuf,
    /// The folder of everything that the agent keeps, if it has one.
    pub data: Option<PathBuf>,
    /// The agent's settings.
    pub config: AgentConfig,
}

impl Doctor {
    /// Gathers all facts.
    pub async fn look(&self) -> DoctorFacts {
        let driver = query_driver(&self.program, self.library.as_os_str()).await;
        let (data, config, program) =
            (self.data.clone(), self.config.clone(), self.program.clone());
        let machine = tokio::task::spawn_blocking(move || MachineFacts {
            mps_control: crate::mps::find(&config.mps_control)
                .map(|path| path.display().to_string()),
            mps_refused: !AccountRules::new(&config, &config.data, program.clone()).serves_mps(),
            isolation_gaps: isolation::find_gaps(&config, &config.data, &program),
            nvml_worker: may_launch_as_root(&config.launch),
            raises_priority: config.kernel_shim.as_ref().map(|_| crate::kernel::may_raise()),
            ..system::look(data.as_deref())
        });
        DoctorFacts { machine: machine.await.unwrap_or_default(), driver }
    }

    /// Checks once, and logs what this agent may do here and what is wrong.
    pub async fn log(&self) {
        let facts = self.look().await;
        tracing::info!(may = summary(&facts), "doctor");
        for Finding { check, level, gpu, text, remedy } in findings(&facts) {
            match level {
                FindingLevel::Ok => {}
                FindingLevel::Warn => tracing::warn!(check, gpu, text, remedy, "doctor"),
                FindingLevel::Blocks => tracing::error!(check, gpu, text, remedy, "doctor"),
            }
        }
    }

    /// Checks whenever the controller requests it, one question after the other.
    pub async fn serve(self, mut questions: mpsc::Receiver<u64>, node: mpsc::Sender<NodeInput>) {
        while let Some(token) = questions.recv().await {
            let findings = findings(&self.look().await);
            let answer = NodeInput::Forward(ToController::Examined { token, findings });
            if node.send(answer).await.is_err() {
                return;
            }
        }
    }

    /// Checks, and prints the findings as text or as JSON; `false` if something blocks.
    pub async fn print(&self, json: bool) -> bool {
        let facts = self.look().await;
        let found = findings(&facts);
        if json {
            let list: Vec<_> = found
                .iter()
                .map(|f| {
                    serde_json::json!({
                        "check": f.check, "level": f.level.as_str(), "gpu": f.gpu,
                        "text": f.text, "remedy": f.remedy,
                    })
                })
                .collect();
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let report = serde_json::json!({ "node": name.trim(), "findings": list });
            println!("{report:#}");
        } else {
            println!("This agent {}.", summary(&facts));
            for finding in &found {
                println!("{}", line(finding));
            }
        }
        found.iter().all(|finding| finding.level != FindingLevel::Blocks)
    }
}

fn line(finding: &Finding) -> String {
    let gpu = finding.gpu.map(|gpu| format!("GPU {gpu}: ")).unwrap_or_default();
    let remedy = finding.remedy.as_deref().map(|remedy| format!("\n         -> {remedy}"));
    let (level, check) = (finding.level.as_str(), &finding.check);
    format!("{level:<6}  {check:<18} {gpu}{}{}", finding.text, remedy.unwrap_or_default())
}

async fn query_driver(program: &Path, library: &OsStr) -> DriverAnswer {
    let child = Command::new(program)
        .arg("nvml-checkup")
        .arg("--nvml")
        .arg(library)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let Ok(Ok(output)) = tokio::time::timeout(DRIVER_WITHIN, child).await else {
        return DriverAnswer::Silent;
    };
    match serde_json::from_slice(&output.stdout) {
        Ok(CheckupOutput::Told(facts)) => DriverAnswer::Reported(facts),
        Ok(CheckupOutput::Refused(fault)) => DriverAnswer::Refused(fault),
        Err(_) => DriverAnswer::Silent,
    }
}
