//! Networks of several sandboxes.

use reqwest::Method;

use crate::api::PauseRequest;
use crate::api::groups::{
    CommitNetwork, CreateNetwork, ForkNetwork, ForkedNetwork, JoinNetwork, Network,
    NetworkCheckpoint, NetworkCommit, NetworkList, NetworkMoment, NetworkSandboxes, PromoteNetwork,
    UpdateNetwork,
};
use crate::transport::MAKE_TIME;
use crate::{Client, Error};

impl Client {
    /// Makes a network.
    pub async fn create_network(&self, request: &CreateNetwork) -> Result<Network, Error> {
        self.post(&["networks"], request, MAKE_TIME).await
    }

    /// All networks, by name.
    pub async fn networks(&self) -> Result<Vec<Network>, Error> {
        let list: NetworkList = self.get(&["networks"]).await?;
        Ok(list.networks)
    }

    /// A network.
    pub async fn network_of_several(&self, network: &str) -> Result<Network, Error> {
        self.get(&["networks", network]).await
    }

    /// Changes who may begin a connection with whom.
    pub async fn update_network(
        &self,
        network: &str,
        request: &UpdateNetwork,
    ) -> Result<Network, Error> {
        self.answer(self.request(Method::PATCH, &["networks", network]).json(request), MAKE_TIME)
            .await
    }

    /// Removes a network without members.
    pub async fn delete_network(&self, network: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["networks", network])).await
    }

    /// A sandbox becomes a member.
    pub async fn join_network(
        &self,
        network: &str,
        request: &JoinNetwork,
    ) -> Result<Network, Error> {
        self.post(&["networks", network, "members"], request, MAKE_TIME).await
    }

    /// A member leaves.
    pub async fn leave_network(&self, network: &str, member: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["networks", network, "members", member])).await
    }

    /// Copies of a whole network.
    pub async fn fork_network(
        &self,
        network: &str,
        request: &ForkNetwork,
    ) -> Result<ForkedNetwork, Error> {
        self.post(&["networks", network, "fork"], request, MAKE_TIME).await
    }

    /// Pauses all members at one instant.
    pub async fn pause_network(
        &self,
        network: &str,
        request: &PauseRequest,
    ) -> Result<NetworkSandboxes, Error> {
        self.post(&["networks", network, "pause"], request, MAKE_TIME).await
    }

    /// Lets all members go on.
    pub async fn resume_network(&self, network: &str) -> Result<NetworkSandboxes, Error> {
        self.post(&["networks", network, "resume"], &serde_json::json!({}), MAKE_TIME).await
    }

    /// A checkpoint of each member.
    pub async fn checkpoint_network(
        &self,
        network: &str,
        name: &str,
    ) -> Result<NetworkCheckpoint, Error> {
        let moment = NetworkMoment { checkpoint: name.to_owned() };
        self.post(&["networks", network, "checkpoint"], &moment, MAKE_TIME).await
    }

    /// All members go back.
    pub async fn rewind_network(&self, network: &str, checkpoint: &str) -> Result<Network, Error> {
        let moment = NetworkMoment { checkpoint: checkpoint.to_owned() };
        self.post(&["networks", network, "rewind"], &moment, MAKE_TIME).await
    }

    /// A network goes on as a copy did.
    pub async fn promote_network(
        &self,
        network: &str,
        request: &PromoteNetwork,
    ) -> Result<Network, Error> {
        self.post(&["networks", network, "promote"], request, MAKE_TIME).await
    }

    /// A commit of each member.
    pub async fn commit_network(
        &self,
        network: &str,
        request: &CommitNetwork,
    ) -> Result<NetworkCommit, Error> {
        self.post(&["networks", network, "commit"], request, MAKE_TIME).await
    }
}
