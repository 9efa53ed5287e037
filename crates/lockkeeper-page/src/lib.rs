//! A page that shows the locks of a mount as they are, served on a loopback address.
//!
//! # Who may look
//! Locks name files and programs, so a page about them is for whoever started the server, and nobody else:
//! not for other users of the machine, and not for other pages in the same browser. Each request must
//! bring a random token that only the starter was told (`token`). And it must name a host that no foreign
//! page can make the browser name, must not come from a foreign page, and must be a GET (`guard`). These are
//! asked in one place, before anything is looked up, and every answer says that nothing may be loaded from
//! elsewhere, framed, kept or passed on. No cookie is used: those of one port go to every port of a host.
//!
//! # What watching costs
//! One thread serves everything, and a second one looks at the locks while somebody has the page open. Then
//! it looks at most twice a second, and never spends more than a twentieth of its time on it, however many
//! locks there are (`sampler`). All who look share what was seen, and each is sent what his view needs: a
//! few rows of the busiest files, one page of one file (`view`). While nobody looks there is one small
//! sum a second, for the last ten minutes of the counters.
//!
//! # Who reads slowly
//! A view is made when a client's connection can take it, from what was seen last; what he missed is not kept.
//! So a slow client costs a connection. Those are limited, and one that takes nothing for a while is closed
//! by the kernel ([`Limits`]).
//!
//! ```text
//!  server    connections and their limits ─► guard  who may ask ─► routes  what is there
//!  sampler   what was seen last, ten minutes of counters  ◄─ Source  (the mount)
//!  view      what one client is sent
//!  page/     the document: no build step, nothing from elsewhere
//! ```

#![deny(missing_docs)]
#![deny(unsafe_code)]

mod document;
mod guard;
mod routes;
mod sampler;
mod server;
mod source;
mod token;
mod view;

pub use server::{BindError, Bound, Limits};
pub use source::{FileId, Source, TotalsNow, Watched};
