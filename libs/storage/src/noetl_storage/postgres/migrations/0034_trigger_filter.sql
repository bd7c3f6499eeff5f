-- Which messages of its subject a trigger takes: a condition; none takes them all.

alter table noetl.trigger add column filter text;
