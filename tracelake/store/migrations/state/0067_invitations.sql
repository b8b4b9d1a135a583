-- A user whom an admin adds may be given a time for the first login.

ALTER TABLE users ADD COLUMN invited_until timestamptz;
COMMENT ON COLUMN users.invited_until IS
    'When the invitation ends unless the user calls before; NULL: the user has called, or may at any time.';
