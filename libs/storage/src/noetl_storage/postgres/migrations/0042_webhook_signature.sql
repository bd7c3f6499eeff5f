-- What the signature of a call covers. Webhooks of the time before were called with one over the
-- time and the body; they go on to take it until they are put again.

alter table noetl.webhook
    add column signature text not null default 'body' check (signature in ('body', 'call'));

alter table noetl.webhook alter column signature set default 'call';

comment on column noetl.webhook.signature is
    'call: method, name, query, time and body are signed; body: time and body alone.';
