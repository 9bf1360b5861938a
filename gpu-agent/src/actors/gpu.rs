//! The actor of one GPU, sole owner of its layout, and the task that starts these actors.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, AtomicResponse, Context, Handler, Message,
    WrapFuture as _,
};
use tessera_model::GpuId;
use tokio::sync::{mpsc, oneshot};

use crate::gpus::file::{self, GpuFile};
use crate::gpus::managed::{GpuTools, ManagedGpu, NOTICES_MAX, READ_EVERY};
use crate::messages::NodeInput;
use crate::messages::gpu::{DriverNotice, GpuAddress, GpuEvent, GpuOrder, ReportedError};
use crate::nvml::client::NvmlFailed;
use crate::nvml::messages::{NvmlReply, NvmlRequest};
use tessera_agent_core::nvml::facts::GpuFacts;

/// Orders that may wait for one GPU: the node sends one at a time.
const MAILBOX: usize = 16;
/// How often GPUs are looked for: a driver may be loaded after the agent, and a GPU may come back.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long a node waits for one GPU before it reports that it is ready: a layout of seven
/// instances is restored within seconds.
const FIRST_LOOK: Duration = Duration::from_secs(60);

/// Owns one GPU. `None` while an order is being carried out.
pub struct GpuActor {
    gpu: Option<ManagedGpu>,
}

/// An order for a GPU.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum GpuMessage {
    /// Read it again.
    Refresh,
    /// Handle an error that the driver reported.
    Heed,
    /// Carry out an order.
    Obey(GpuOrder),
}

impl Actor for GpuActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        ctx.run_interval(READ_EVERY, |_, ctx| ctx.notify(GpuMessage::Refresh));
    }
}

impl Handler<GpuMessage> for GpuActor {
    // Atomic, so that no order sees a layout that is being changed.
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, message: GpuMessage, _: &mut Self::Context) -> Self::Result {
        let gpu = self.gpu.take();
        let work = async move {
            let mut gpu = gpu?;
            match message {
                GpuMessage::Refresh => gpu.look().await,
                GpuMessage::Heed => {}
                GpuMessage::Obey(GpuOrder::Apply(order)) => gpu.apply(order).await,
                GpuMessage::Obey(GpuOrder::SetMigMode { on, .. }) => gpu.set_mig_mode(on).await,
                GpuMessage::Obey(GpuOrder::Clear { slot, .. }) => gpu.clear(slot).await,
                GpuMessage::Obey(GpuOrder::Hit { at_unix, cause, attempts, .. }) => {
                    gpu.hit(at_unix, &cause, &attempts).await;
                }
            }
            gpu.handle_errors().await;
            Some(gpu)
        };
        AtomicResponse::new(Box::pin(
            work.into_actor(self).map(|gpu, actor: &mut Self, _| actor.gpu = gpu),
        ))
    }
}

/// One GPU, as the task that starts these actors knows it.
struct Member {
    actor: Addr<GpuActor>,
    notices: mpsc::Sender<ReportedError>,
}

type Members = BTreeMap<GpuId, Member>;

/// Looks for GPUs, starts an actor for each, and forwards orders and errors. `ready` is completed
/// after the first look.
pub async fn run(
    tools: GpuTools,
    mut orders: mpsc::Receiver<GpuOrder>,
    mut reported: mpsc::Receiver<DriverNotice>,
    ready: oneshot::Sender<()>,
) {
    let mut members = Members::new();
    look(&tools, &mut members).await;
    // Fails only if nobody waits.
    let _ = ready.send(());
    let first = tokio::time::Instant::now() + LOOK_EVERY;
    let mut timer = tokio::time::interval_at(first, LOOK_EVERY);
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => hand_on(&tools, &members, order).await,
                None => return,
            },
            Some(reported) = reported.recv() => pass_on(&members, reported),
            _ = timer.tick() => look(&tools, &mut members).await,
        }
    }
}

/// Passes on what the driver reported. A GPU with too many queued errors learns of the rest by
/// being read.
fn pass_on(members: &Members, reported: DriverNotice) {
    for (gpu, member) in members {
        let message = match &reported {
            DriverNotice::Noticed(noticed) => match &noticed.on {
                GpuAddress::Gpu(on) if on != gpu => continue,
                GpuAddress::Gpu(_) | GpuAddress::Bus(_) => {
                    match member.notices.try_send(noticed.clone()) {
                        Ok(()) => GpuMessage::Heed,
                        Err(_) => GpuMessage::Refresh,
                    }
                }
            },
            DriverNotice::Lost => GpuMessage::Refresh,
        };
        // A full mailbox means that it will read the GPU anyway.
        let _ = member.actor.try_send(message);
    }
}

async fn hand_on(tools: &GpuTools, members: &Members, order: GpuOrder) {
    let gpu = order.gpu().clone();
    let answer = refusal(&order);
    let refused = match members.get(&gpu) {
        Some(member) => member.actor.try_send(GpuMessage::Obey(order)).is_err(),
        None => true,
    };
    if refused && let Some(answer) = answer {
        let _ = tools.node.send(NodeInput::Gpu(answer)).await;
    }
}

fn refusal(order: &GpuOrder) -> Option<GpuEvent> {
    let reason = "the GPU takes no orders".to_owned();
    match order {
        GpuOrder::Apply(order) => Some(GpuEvent::PlanEnded {
            gpu: order.gpu.clone(),
            plan: order.plan,
            end: tessera_frames::cluster::PlanEnd::Refused { reason },
        }),
        GpuOrder::SetMigMode { gpu, .. } => {
            Some(GpuEvent::MigModeEnded { gpu: gpu.clone(), problem: Some(reason) })
        }
        // Its answer would be a report, and there is none.
        GpuOrder::Clear { .. } | GpuOrder::Hit { .. } => None,
    }
}

async fn look(tools: &GpuTools, members: &mut Members) {
    match tools.nvml.request(NvmlRequest::List).await {
        Ok(NvmlReply::Gpus(found)) => {
            for gpu in found {
                take_on(tools, members, gpu, None).await;
            }
        }
        Ok(_) | Err(NvmlFailed::NoAnswer) => {}
        Err(NvmlFailed::Refused(fault)) => {
            if members.is_empty() {
                tracing::warn!(%fault, "no GPUs");
            }
        }
    }
    // A GPU that was here before and is not listed now is reported as it was, with what is wrong.
    for facts in file::all_seen(&tools.data) {
        take_on(tools, members, facts.gpu.clone(), Some(facts)).await;
    }
}

async fn take_on(tools: &GpuTools, members: &mut Members, id: GpuId, facts: Option<GpuFacts>) {
    if members.contains_key(&id) {
        return;
    }
    let file = match GpuFile::load(&tools.data, &id) {
        Ok(file) => file,
        Err(error) => {
            // Guessing the number could let an old plan through.
            tracing::error!(gpu = %id, %error, "a GPU is not used");
            return;
        }
    };
    let (notices, received) = mpsc::channel(NOTICES_MAX);
    let mut gpu = ManagedGpu::new(id.clone(), tools.clone(), file, facts, received);
    // Its layout comes back before the node reports that it is ready; if it can't be read yet, the
    // actor tries again.
    if tokio::time::timeout(FIRST_LOOK, gpu.look()).await.is_err() {
        tracing::warn!(gpu = %id, "the GPU isn't ready yet");
    }
    tracing::info!(gpu = %id, "GPU found");
    members.insert(id, Member { actor: GpuActor { gpu: Some(gpu) }.start(), notices });
}
