//! The actor of one GPU, sole owner of its layout, and the task that starts these actors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, AtomicResponse, Context, Handler, Message,
    WrapFuture as _,
};
use tessera_model::GpuId;
use tokio::sync::{mpsc, oneshot};

use crate::gpus::file::GpuFile;
use crate::gpus::one::{Gpu, READ_EVERY};
use crate::gpus::{GpuEvent, GpuOrder};
use crate::node::Input;
use crate::nvml::client::{NvmlClient, NvmlFailed};
use crate::nvml::messages::{Reply, Request};

/// Orders that may wait for one GPU: the node sends one at a time.
const MAILBOX: usize = 16;
/// How often GPUs are looked for: a driver may be loaded after the agent, a GPU come back.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Owns one GPU. `None` while an order is being carried out.
pub struct GpuActor {
    gpu: Option<Gpu>,
}

/// Something that a GPU is to do.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum GpuMessage {
    /// Read it again.
    Refresh,
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
                // Its report says what is wrong.
                GpuMessage::Refresh => drop(gpu.refresh().await),
                GpuMessage::Obey(GpuOrder::Apply(order)) => gpu.apply(order).await,
                GpuMessage::Obey(GpuOrder::SetMigMode { on, .. }) => gpu.set_mig_mode(on).await,
                GpuMessage::Obey(GpuOrder::Clear { slot, .. }) => gpu.clear(slot).await,
            }
            Some(gpu)
        };
        AtomicResponse::new(Box::pin(
            work.into_actor(self).map(|gpu, actor: &mut Self, _| actor.gpu = gpu),
        ))
    }
}

/// What GPUs need.
#[derive(Clone, Debug)]
pub struct GpuParts {
    /// The way to the driver.
    pub nvml: NvmlClient,
    /// The way to the node.
    pub node: mpsc::Sender<Input>,
    /// The data folder.
    pub data: PathBuf,
    /// Tries of a blocked step.
    pub tries_max: u32,
}

/// Looks for GPUs, starts an actor for each, and hands orders on. `ready` is told after the
/// first look.
pub async fn run(
    parts: GpuParts,
    mut orders: mpsc::Receiver<GpuOrder>,
    ready: oneshot::Sender<()>,
) {
    let mut actors = BTreeMap::new();
    look(&parts, &mut actors).await;
    // Fails only if nobody waits.
    let _ = ready.send(());
    let first = tokio::time::Instant::now() + LOOK_EVERY;
    let mut timer = tokio::time::interval_at(first, LOOK_EVERY);
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => hand_on(&parts, &actors, order).await,
                None => return,
            },
            _ = timer.tick() => look(&parts, &mut actors).await,
        }
    }
}

async fn hand_on(parts: &GpuParts, actors: &BTreeMap<GpuId, Addr<GpuActor>>, order: GpuOrder) {
    let gpu = order.gpu().clone();
    let answer = refusal(&order);
    let refused = match actors.get(&gpu) {
        Some(actor) => actor.try_send(GpuMessage::Obey(order)).is_err(),
        None => true,
    };
    if refused && let Some(answer) = answer {
        let _ = parts.node.send(Input::Gpu(answer)).await;
    }
}

fn refusal(order: &GpuOrder) -> Option<GpuEvent> {
    let reason = "the GPU takes no orders".to_owned();
    match order {
        GpuOrder::Apply(order) => Some(GpuEvent::PlanEnded {
            gpu: order.gpu.clone(),
            plan: order.plan,
            end: tessera_wire::frames::PlanEnd::Refused { reason },
        }),
        GpuOrder::SetMigMode { gpu, .. } => {
            Some(GpuEvent::MigModeEnded { gpu: gpu.clone(), problem: Some(reason) })
        }
        // Its answer would be a report, and there is none.
        GpuOrder::Clear { .. } => None,
    }
}

async fn look(parts: &GpuParts, actors: &mut BTreeMap<GpuId, Addr<GpuActor>>) {
    let found = match parts.nvml.ask(Request::List).await {
        Ok(Reply::Gpus(found)) => found,
        Ok(Reply::Gpu(_) | Reply::Done | Reply::Failed(_)) => return,
        Err(NvmlFailed::NoAnswer) => return,
        Err(NvmlFailed::Refused(fault)) => {
            if actors.is_empty() {
                tracing::warn!(%fault, "no GPUs");
            }
            return;
        }
    };
    for id in found {
        if actors.contains_key(&id) {
            continue;
        }
        let file = match GpuFile::load(&parts.data, &id) {
            Ok(file) => file,
            Err(error) => {
                // Guessing the number could let an old plan through.
                tracing::error!(gpu = %id, %error, "a GPU is left alone");
                continue;
            }
        };
        let parts = parts.clone();
        let mut gpu =
            Gpu::new(id.clone(), parts.nvml, parts.node, parts.data, parts.tries_max, file);
        // The first read is part of taking it on; if it fails, the actor tries again.
        let _ = gpu.refresh().await;
        tracing::info!(gpu = %id, "GPU found");
        actors.insert(id, GpuActor { gpu: Some(gpu) }.start());
    }
}
