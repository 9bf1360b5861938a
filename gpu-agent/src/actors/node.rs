//! The actor of the node: one mailbox, in order, around [`Node`].

use actix::{Actor, Addr, AsyncContext as _, Context, Handler, Message};
use tokio::sync::mpsc;

use crate::node::{INPUTS_MAX, Input, Node, TICK_EVERY};

/// Owns the node. Decides nothing itself.
pub struct NodeActor {
    node: Node,
}

/// Something that the node hears.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Hear(pub Input);

impl NodeActor {
    /// Starts the actor and the task that carries inputs into its mailbox, in their order.
    pub fn start(node: Node, mut inputs: mpsc::Receiver<Input>) -> Addr<Self> {
        let address = Actor::start(Self { node });
        let mailbox = address.clone();
        actix::spawn(async move {
            while let Some(input) = inputs.recv().await {
                if mailbox.send(Hear(input)).await.is_err() {
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
        ctx.run_interval(TICK_EVERY, |actor, _| actor.node.hear(Input::Tick));
    }
}

impl Handler<Hear> for NodeActor {
    type Result = ();

    fn handle(&mut self, hear: Hear, _: &mut Self::Context) {
        self.node.hear(hear.0);
    }
}
