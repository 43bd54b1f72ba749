// Package node is what the server programs share: settings, storage, the
// connections to other services, and the order in which things start and stop.
//
// Start, each step after what it needs: telemetry, storage (the object store is
// probed before anything is served), discovery and connections, then each
// service: its port, the service, its RPCs, its work, its registration.
//
// Stop, in reverse: a service that calls others goes before them, so that what
// it has under way can still be done. First of all readiness ends, so that
// balancers and probes look elsewhere. Then per service:
//  1. Its registration, so that nobody new comes.
//  2. Its work (Part.Run), which hands over and ends the calls that would not
//     end by themselves: subscriptions, sessions, waits at a tail. Their callers
//     get UNAVAILABLE and go on elsewhere. This is before the endpoint, which
//     would wait for them, and while the services that it needs still serve: a
//     session ends only after the acks that it owes.
//  3. Its listeners that call it (HTTP), then its endpoint: they refuse new
//     calls and let those under way end, but not for longer than the stop's
//     deadline; then they cancel them.
//
// Then what the services shared: connections, discovery, storage, which nobody
// uses any more; and telemetry, which may still have to send what happened until
// here.
//
// A stop is bounded whatever is dead: calls under way by StopTimeout over all
// services, the registry by leavePatience, and each part bounds its own work. A
// part that does not is left behind by Settings.End.
package node
