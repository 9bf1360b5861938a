//! The actor of the node: one mailbox, in order, around [`AgentNode`].

use actix::{Actor, Addr, AsyncContext as _, Context, Handler, Message};
use tokio::sync::mpsc;

use crate::messages::{INPUTS_MAX, NodeInput};
use crate::node::{AgentNode, TICK_EVERY};

/// Owns the node. Decides nothing itself.
pub struct NodeActor {
    node: AgentNode,
}

/// Something that the node receives.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct HandleInput(pub NodeInput);

impl NodeActor {
    /// Starts the actor and the task that carries inputs into its mailbox, in their order.
    pub fn start(node: AgentNode, mut inputs: mpsc::Receiver<NodeInput>) -> Addr<Self> {
        let address = Actor::start(Self { node });
        let mailbox = address.clone();
        actix::spawn(async move {
            while let Some(input) = inputs.recv().await {
                if mailbox.send(HandleInput(input)).await.is_err() {
                    return;
                }
            }
        });
        address
    }
}

impl Actor for NodeActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(INPUTS_MAX);
        ctx.run_interval(TICK_EVERY, |actor, _| actor.node.handle(NodeInput::Tick));
    }
}

impl Handler<HandleInput> for NodeActor {
    type Result = ();

    fn handle(&mut self, message: HandleInput, _: &mut Self::Context) {
        self.node.handle(message.0);
    }
}
