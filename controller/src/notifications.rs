//! Mail and webhooks about jobs: what is to leave the cluster, and its delivery.
//!
//! Rows of the outbox are committed with the state changes that they are about. A task for each channel delivers them,
//! at least once, while this controller leads. Rounds and submits wake it, and never wait for it.

mod delivery;
mod mail;
mod settings;
mod webhook;

use std::sync::Arc;

use tessera_control::notifications::{Channel, NotificationRules};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use self::delivery::Delivery;
use self::mail::MailProgram;
use self::webhook::Receiver;
use crate::store::ConnectOptions;

pub use self::settings::{MailSettings, WebhookSettings};

/// The outbox, for those who commit changes.
#[derive(Clone, Debug, Default)]
pub struct Outbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    rules: NotificationRules,
    mail: Notify,
    webhook: Notify,
}

impl Outbox {
    /// Makes an outbox of the operator's settings.
    pub fn new(mail: Option<&MailSettings>, webhook: Option<&WebhookSettings>) -> Self {
        let rules = NotificationRules {
            mail: mail.is_some(),
            webhook: webhook.map(WebhookSettings::states).unwrap_or_default(),
        };
        Self(Arc::new(Shared { rules, ..Shared::default() }))
    }

    /// Returns what leaves the cluster.
    pub fn rules(&self) -> &NotificationRules {
        &self.0.rules
    }

    /// Starts the delivery of new rows, which are committed.
    pub fn wake(&self) {
        self.0.mail.notify_one();
        self.0.webhook.notify_one();
    }

    fn news(&self, channel: Channel) -> &Notify {
        match channel {
            Channel::Mail => &self.0.mail,
            Channel::Webhook => &self.0.webhook,
        }
    }
}

/// How notifications leave, made of the settings.
#[derive(Debug)]
pub struct Senders {
    mail: Option<MailProgram>,
    webhook: Option<Receiver>,
}

impl Senders {
    /// Opens what the settings name.
    ///
    /// # Errors
    ///
    /// If the secret can't be read, or no client can be made.
    pub fn open(
        mail: Option<&MailSettings>,
        webhook: Option<&WebhookSettings>,
    ) -> anyhow::Result<Self> {
        let webhook = webhook.map(Receiver::open).transpose()?;
        Ok(Self { mail: mail.map(MailProgram::new), webhook })
    }
}

/// Starts the delivery of both channels on `runtime`. A channel without a sender only forgets what is too old.
pub fn start(runtime: &Handle, options: &ConnectOptions, senders: Senders, outbox: &Outbox) {
    let Senders { mail, webhook } = senders;
    let parts = |channel| Delivery::new(channel, options.clone(), outbox.clone());
    runtime.spawn(parts(Channel::Mail).run(mail));
    runtime.spawn(parts(Channel::Webhook).run(webhook));
}
