//! Asks the server, in a thread of its own: however long it takes to answer, keys are heard.

use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};

use super::Event;
use crate::server::Server;

/// The thread that asks.
pub struct Feed(SyncSender<()>);

impl Feed {
    /// Starts it. Each answer becomes an event.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn start(server: Server, events: Sender<Event>) -> std::io::Result<Feed> {
        let (ask, asked) = sync_channel(1);
        std::thread::Builder::new()
            .name("feed".into())
            .spawn(move || answer(&server, &asked, &events))?;
        Ok(Feed(ask))
    }

    /// Asks, unless a question is still to be asked.
    pub fn ask(&self) {
        let _ = self.0.try_send(());
    }
}

fn answer(server: &Server, asked: &Receiver<()>, events: &Sender<Event>) {
    while asked.recv().is_ok() {
        if events
            .send(Event::Report(server.ask().map(Box::new)))
            .is_err()
        {
            return;
        }
    }
}
