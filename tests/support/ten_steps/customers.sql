-- The customers, each in one of the regions.
SELECT range AS id, 'region ' || range % $region_count AS region
FROM range($customer_count);
