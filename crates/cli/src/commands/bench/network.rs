//! `ramet bench --network`: what a fork of a whole network takes, against as many children of one sandbox.

use std::time::Instant;

use ramet_client::api::groups::{CreateNetwork, ForkNetwork, JoinNetwork};
use ramet_client::api::{CreateSandbox, ForkRequest};

use super::{Bench, ask, labels, millis};
use crate::commands::new;
use crate::failure::Failure;

/// Members of the network, and children of the one.
const MEMBERS: u32 = 4;
const NAME: &str = "ramet-bench";

impl Bench {
    /// Forks of a network of four, and forks of one sandbox into four, each to the first command answered in all.
    pub(super) async fn networks(&mut self) -> Result<(), Failure> {
        self.remove_networks().await?;
        let network = CreateNetwork { name: NAME.to_owned(), ..CreateNetwork::default() };
        self.client.create_network(&network).await?;
        let mut source = String::new();
        for number in 0..MEMBERS {
            let request = CreateSandbox { labels: labels(), ..CreateSandbox::default() };
            let made = new::create(&self.client, &request).await?.sandbox;
            let name = Some(format!("m{number}"));
            let join = JoinNetwork { sandbox: made.id.clone(), name };
            self.client.join_network(NAME, &join).await?;
            ask(&self.client, &made.id).await?;
            source = made.id;
        }
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        for _ in 0..self.samples {
            alone.push(self.fork_alone(&source).await?);
            together.push(self.fork_together().await?);
        }
        self.add("group_fork", "ms", &together).against(&alone).with("members", MEMBERS);
        self.remove_networks().await
    }

    async fn fork_alone(&self, source: &str) -> Result<f64, Failure> {
        let began = Instant::now();
        let request = ForkRequest { count: Some(MEMBERS), ..ForkRequest::default() };
        let forked = self.client.fork(source, &request).await?;
        let children: Vec<String> =
            forked.children.into_iter().filter_map(|child| Some(child.sandbox?.id)).collect();
        for child in &children {
            ask(&self.client, child).await?;
        }
        let took = millis(began);
        for child in &children {
            self.client.delete(child).await?;
        }
        Ok(took)
    }

    async fn fork_together(&self) -> Result<f64, Failure> {
        let began = Instant::now();
        let forked = self.client.fork_network(NAME, &ForkNetwork::default()).await?;
        let copy = forked.copies.into_iter().find_map(|copy| copy.network);
        let copy = copy.ok_or_else(|| Failure::new("a fork without a copy"))?;
        for member in &copy.members {
            ask(&self.client, &member.sandbox).await?;
        }
        let took = millis(began);
        for member in &copy.members {
            self.client.delete(&member.sandbox).await?;
        }
        self.client.delete_network(&copy.id).await?;
        Ok(took)
    }

    /// What this or an earlier run has left.
    async fn remove_networks(&self) -> Result<(), Failure> {
        for network in self.client.networks().await? {
            if network.name == NAME || network.name.starts_with(&format!("{NAME}-")) {
                for member in &network.members {
                    self.client.delete(&member.sandbox).await?;
                }
                self.client.delete_network(&network.id).await?;
            }
        }
        Ok(())
    }
}
