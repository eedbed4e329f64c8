"""Who people are where no key says it: a trusted proxy or an OpenID provider; what they may do, a file of ours."""
