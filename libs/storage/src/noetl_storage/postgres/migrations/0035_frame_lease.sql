-- No event says when the lease of a frame ends: it is a delivery of JetStream, or a worker's claim.
-- The index of it goes with the column.

alter table noetl.frame drop column lease_until;
