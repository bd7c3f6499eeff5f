-- The last tests of a rule of notifications are found among the records of its organization.

create index administration_event_rule_tests
on noetl.administration_event (tenant_id, organization_id, target, version)
where action in ('notification.tested', 'notification.removed');
