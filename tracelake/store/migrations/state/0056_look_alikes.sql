-- Subjects that look alike in different scripts are compared as equal, as `compare_key` does from now on.

CREATE FUNCTION look_of(key text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN translate(
    key,
    U&'\0430\0432\0433\0435\0455\0456\0458\043a\043c\043d\043e\043f\0440\0441\0442\0443\0445\04bb\0501\051b\051d\050d\04cf\03b1\03b2\03b3\03b5\03b6\03b7\03b9\03ba\03bd\03bf\03c1\03c4\03c5\03c7\0570\0578\057d\0585\0581\0566\0561\13aa\13f4\13df\13a0\13ac\13c0\13bb\13ab\13e6\13de\13b7\13e2\13a1\13da\13a2\13d9\13b3\13a9\13c3',
    'abresijkmhonpctyxhdqwglabyeznikvoptuxhnuogqwabcdeghjklmprstvwyz');
-- Where two look alike already, the oldest has the key and both stay.
UPDATE users u
   SET subject_key = NULL
 WHERE u.removed_at IS NULL AND u.subject_key <> look_of(u.subject_key)
   AND EXISTS (SELECT FROM users o
                WHERE o.removed_at IS NULL AND o.id <> u.id AND look_of(o.subject_key) = look_of(u.subject_key)
                  AND (o.subject_key = look_of(o.subject_key) OR (o.created_at, o.id) < (u.created_at, u.id)));
UPDATE users SET subject_key = look_of(subject_key) WHERE subject_key <> look_of(subject_key);
DROP FUNCTION look_of;
COMMENT ON COLUMN users.subject_key IS
    'The subject in Unicode form NFKC, without case, with letters that look like Latin ones as these: two users never share it. NULL: inserted before it was compared.';
