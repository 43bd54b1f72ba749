// Package node is what the server programs share: settings, storage, the
// connections to other services, and the order in which things start and stop.
//
// Start, each step after what it needs: telemetry, storage (the object store is
// probed before anything is served), discovery and connections, then each
// service: its port, the service, its RPCs, its work, its registration.
//
// Stop, in reverse, services that call others first:
//  1. Readiness ends, so that balancers and probes look elsewhere.
//  2. Per service: its registration, so that nobody new comes; its own work,
//     which answers what is under way and hands over; its endpoint, which lets
//     handlers end and then cancels them.
//  3. Connections, discovery, storage: nobody uses them any more.
//  4. Telemetry, which may still have to send what happened until here.
package node
