-- A file of a batch: every fifth order corrects one of the batch before, every 97th is wrong.
SELECT
    ($batch - CASE WHEN $batch > 1 AND n % 5 = 0 THEN 2 ELSE 1 END) * $order_count + n AS id,
    n * 31 % $customer_count AS customer,
    CASE WHEN n % 97 = 1 THEN '-' ELSE '' END
    || (n * 7919 % 90000 // 100) || '.' || lpad((n * 7919 % 100)::varchar, 2, '0') AS amount,
    'of "' || $batch || '",' || chr(10) || 'line ' || n AS note
FROM (SELECT range AS n FROM range($file, $order_count, $file_count));
